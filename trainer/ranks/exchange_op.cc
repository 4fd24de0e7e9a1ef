// A TensorFlow operation that sends tensors to other ranks and waits for those that it is to receive.
//
// It sends from and receives into the tensors themselves. While it waits, its thread looks for messages without
// a pause, then with short ones, then with longer ones: it has nothing else to do. While this rank computes, a
// thread of its own watches what is still leaving, and receives what comes before it is asked for: MPI moves large
// messages only while somebody calls it, and only once the receiver has a place for them.
//
// Processors only: on a GPU, TensorFlow brings tensors to the host and back. On GPUs: docs/decisions/0063-gpus-and-compilation.md.

#include <mpi.h>
#include <sched.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace {

using tensorflow::DataType;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Status;
using tensorflow::Tensor;
using tensorflow::TensorShape;

constexpr int64_t kAtOnceNs = 5'000'000;
constexpr long kPauseNs = 50'000;
// Later still, with longer ones: a thread that looks every 50 us takes a quarter of a core.
constexpr int64_t kSoonNs = 20'000'000;
constexpr long kLongPauseNs = 200'000;
// Between two looks while this rank computes: buffers of sockets hold what moves in that time, and every look takes
// the core from what is computed.
constexpr long kLookPauseNs = 200'000;
constexpr long kIdlePauseNs = 1'000'000;
// After the last exchange nobody looks any more: training has ended, or it is long between two steps.
constexpr int64_t kListenNs = 60'000'000'000;
// A rank that computes for longer between two messages hangs.
constexpr int64_t kLimitNs = 3'600'000'000'000;
constexpr int kRanks = 4096;
// To another host a message goes in pieces that Open MPI sends over TCP at once (64 KiB, its envelope included). Of
// larger ones it asks the receiver, whose answer waits behind all that the receiver itself is sending.
constexpr int64_t kPieceBytes = 60 << 10;

std::atomic<uint64_t> sent_bytes[kRanks];
std::atomic<uint64_t> received_bytes[kRanks];
std::atomic<uint64_t> sent_messages[kRanks];
std::atomic<uint64_t> received_messages[kRanks];

int64_t now_ns(clockid_t clock = CLOCK_MONOTONIC) {
  timespec t;
  clock_gettime(clock, &t);
  return int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

// One message that came: seconds of the wall clock at which it was asked for and was there.
struct Arrival {
  double asked, there, source, bytes;
};

// The newest arrivals that nobody has read yet.
class Arrivals {
 public:
  void add(const Arrival& one) {
    std::lock_guard<std::mutex> lock(mutex_);
    kept_[written_++ % kKept] = one;
  }

  uint64_t take(Arrival* into) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (written_ - read_ > kKept) read_ = written_ - kKept;
    const uint64_t count = written_ - read_;
    for (uint64_t i = 0; i < count; ++i) into[i] = kept_[(read_ + i) % kKept];
    read_ = written_;
    return count;
  }

  static constexpr uint64_t kKept = 16384;

 private:
  std::mutex mutex_;
  Arrival kept_[kKept];
  uint64_t written_ = 0, read_ = 0;
};

Arrivals arrivals;

void pause(long ns) {
  timespec t{0, ns};
  nanosleep(&t, nullptr);
}

std::string told(int code) {
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(code, text, &length);
  return std::string(text, length);
}

std::string unlike(size_t bytes, int source, size_t wanted) {
  return "a message of " + std::to_string(bytes) + " bytes came from process " + std::to_string(source) +
         " in place of " + std::to_string(wanted);
}

int64_t pieces_of(int64_t bytes, bool in_pieces) {
  return in_pieces ? std::max<int64_t>(1, (bytes + kPieceBytes - 1) / kPieceBytes) : 1;
}

int64_t length_of(int64_t piece, int64_t pieces, int64_t bytes) {
  return pieces == 1 ? bytes : std::min(kPieceBytes, bytes - piece * kPieceBytes);
}

// A part of a message on its way to this rank.
struct Piece {
  MPI_Request request = MPI_REQUEST_NULL;  // null once it is there
  Tensor early;                            // what came before it was asked for
};

// A message that was asked for.
struct Coming {
  Tensor tensor;
  std::deque<Piece> left;  // pieces that are not in the tensor yet, in their order
  size_t bytes = 0;        // of those that are
};

// A message on its way from this rank.
struct Leaving {
  std::vector<MPI_Request> requests;
  Tensor tensor;
};

// What moves while this rank does something else: messages that are leaving, with the tensors that they leave
// from, and those that come early.
class Meanwhile {
 public:
  void leaves(Leaving one) {
    std::lock_guard<std::mutex> lock(mutex_);
    leaving_.push_back(std::move(one));
  }

  // Ask for the next message of a sender and a tag, of which all or some may have come already.
  Status expect(int source, int tag, bool in_pieces, MPI_Comm comm, DataType type, const TensorShape& shape,
                OpKernelContext* c, Coming* into) {
    std::lock_guard<std::mutex> lock(mutex_);
    const int64_t bytes = shape.num_elements() * tensorflow::DataTypeSize(type);
    const int64_t count = pieces_of(bytes, in_pieces);
    const auto found = early_.find({source, tag});
    if (found != early_.end()) {
      auto& queue = found->second;
      while (!queue.empty() && static_cast<int64_t>(into->left.size()) < count) {
        into->left.push_back(queue.front());
        queue.pop_front();
      }
      if (queue.empty()) early_.erase(found);
    }
    if (count == 1 && !into->left.empty()) {  // it is taken as it is
      const Tensor early = into->left.front().early;
      if (into->tensor.BitcastFrom(early, type, shape).ok()) return absl::OkStatus();
      return tensorflow::errors::Internal(unlike(early.TotalBytes(), source, bytes));
    }
    TF_RETURN_IF_ERROR(c->allocate_temp(type, shape, &into->tensor));
    char* const to = static_cast<char*>(into->tensor.data());
    for (int64_t n = into->left.size(); n < count; ++n) {
      Piece one;
      const int code = MPI_Irecv(to + n * kPieceBytes, length_of(n, count, bytes), MPI_BYTE, source, tag, comm,
                                 &one.request);
      if (code != MPI_SUCCESS) return tensorflow::errors::Internal(told(code));
      into->left.push_back(one);
    }
    return absl::OkStatus();
  }

  // Look after what is leaving; what comes is for whoever calls.
  void look() {
    std::lock_guard<std::mutex> lock(mutex_);
    test();
  }

  // Leave it all to a thread.
  void leave(MPI_Comm comm) {
    std::lock_guard<std::mutex> lock(mutex_);
    comm_ = comm;
    listens_until_ = now_ns() + kListenNs;
    test();
    if (!started_) {
      started_ = true;
      std::thread([this] { run(); }).detach();
    }
    there_.notify_one();
  }

  // How many bytes are there that nobody has asked for yet.
  uint64_t there() {
    std::lock_guard<std::mutex> lock(mutex_);
    uint64_t bytes = 0;
    for (const auto& [key, queue] : early_) {
      for (const Piece& one : queue) bytes += one.request == MPI_REQUEST_NULL ? one.early.TotalBytes() : 0;
    }
    return bytes;
  }

  // Others receive messages from now on.
  void stop_listening() {
    std::lock_guard<std::mutex> lock(mutex_);
    listens_until_ = 0;
  }

 private:
  void test() {
    for (size_t i = 0; i < leaving_.size();) {
      int done = 0;
      MPI_Testall(leaving_[i].requests.size(), leaving_[i].requests.data(), &done, MPI_STATUSES_IGNORE);
      if (!done) {
        ++i;
        continue;
      }
      leaving_.erase(leaving_.begin() + i);
    }
  }

  // Receive what has come; returns whether something has, or is on its way.
  bool listen() {
    bool moves = false;
    for (int found = 1; found;) {
      MPI_Message message;
      MPI_Status status;
      if (MPI_Improbe(MPI_ANY_SOURCE, MPI_ANY_TAG, comm_, &found, &message, &status) != MPI_SUCCESS) return false;
      if (!found) break;
      moves = true;
      int bytes = 0;
      MPI_Get_count(&status, MPI_BYTE, &bytes);
      Piece one{MPI_REQUEST_NULL, Tensor(tensorflow::DT_UINT8, TensorShape({bytes}))};
      MPI_Imrecv(one.early.data(), bytes, MPI_BYTE, &message, &one.request);
      early_[{status.MPI_SOURCE, status.MPI_TAG}].push_back(one);
    }
    for (auto& [key, queue] : early_) {
      for (Piece& one : queue) {
        int done = 1;
        if (one.request != MPI_REQUEST_NULL) MPI_Test(&one.request, &done, MPI_STATUS_IGNORE);
        moves |= !done;
      }
    }
    return moves;
  }

  void run() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
      there_.wait(lock, [this] { return !leaving_.empty() || now_ns() < listens_until_; });
      int ended = 0;
      MPI_Finalized(&ended);
      if (ended) return;
      test();
      const bool moves = now_ns() < listens_until_ && listen();
      const bool idle = leaving_.empty() && !moves;
      lock.unlock();
      pause(idle ? kIdlePauseNs : kLookPauseNs);
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable there_;
  std::deque<Leaving> leaving_;
  std::map<std::pair<int, int>, std::deque<Piece>> early_;  // by sender and tag
  MPI_Comm comm_ = MPI_COMM_NULL;
  int64_t listens_until_ = 0;
  bool started_ = false;
};

Meanwhile& meanwhile() {
  static Meanwhile* one = new Meanwhile;  // lives as long as its thread
  return *one;
}

class ExchangeOp : public tensorflow::OpKernel {
 public:
  explicit ExchangeOp(OpKernelConstruction* c) : OpKernel(c) {
    int64_t address = 0;
    OP_REQUIRES_OK(c, c->GetAttr("comm", &address));
    comm_ = *reinterpret_cast<MPI_Comm*>(address);
    OP_REQUIRES_OK(c, c->GetAttr("targets", &targets_));
    OP_REQUIRES_OK(c, c->GetAttr("target_tags", &target_tags_));
    OP_REQUIRES_OK(c, c->GetAttr("sources", &sources_));
    OP_REQUIRES_OK(c, c->GetAttr("source_tags", &source_tags_));
    OP_REQUIRES_OK(c, c->GetAttr("sizes", &sizes_));
    OP_REQUIRES_OK(c, c->GetAttr("far", &far_));
  }

  void Compute(OpKernelContext* c) override {
    const int64_t began = now_ns();
    const double asked = now_ns(CLOCK_REALTIME) / 1e9;
    const size_t count = sources_.size();
    std::vector<Coming> coming(count);
    size_t left = count;
    for (size_t i = 0; i < count; ++i) {
      const Status status = meanwhile().expect(sources_[i], source_tags_[i], is_far(sources_[i]), comm_,
                                               output_type(i), TensorShape({sizes_[i]}), c, &coming[i]);
      if (!status.ok()) return give_up(c, coming, std::string(status.message()));
    }
    for (size_t i = 0; i < targets_.size(); ++i) {
      const Tensor& from = c->input(i);
      const int64_t bytes = from.TotalBytes(), pieces = pieces_of(bytes, is_far(targets_[i]));
      char* const data = static_cast<char*>(from.data());
      Leaving one{std::vector<MPI_Request>(pieces, MPI_REQUEST_NULL), from};
      for (int64_t n = 0; n < pieces; ++n) {
        const int code = MPI_Isend(data + n * kPieceBytes, length_of(n, pieces, bytes), MPI_BYTE, targets_[i],
                                   target_tags_[i], comm_, &one.requests[n]);
        if (code != MPI_SUCCESS) return give_up(c, coming, told(code));
      }
      meanwhile().leaves(std::move(one));
      sent_bytes[targets_[i] % kRanks] += bytes;
      ++sent_messages[targets_[i] % kRanks];
    }
    std::vector<bool> there(count, false);
    while (left != 0) {
      for (size_t i = 0; i < count; ++i) {
        if (there[i]) continue;
        std::string wrong;
        if (!take(coming[i], i, &wrong)) {
          if (!wrong.empty()) return give_up(c, coming, wrong);
          continue;
        }
        there[i] = true;
        arrived(asked, i, coming[i].tensor.TotalBytes());
        --left;
      }
      if (left == 0) break;
      meanwhile().look();
      const int64_t waited = now_ns() - began;
      if (waited > kLimitNs) {
        std::string late;
        for (size_t i = 0; i < count; ++i) {
          if (!there[i]) late += (late.empty() ? "" : ", ") + std::to_string(sources_[i]);
        }
        return give_up(c, coming, "no message within 3600 s from process " + late);
      }
      if (waited < kAtOnceNs) {
        sched_yield();
      } else {
        pause(waited < kSoonNs ? kPauseNs : kLongPauseNs);
      }
    }
    for (size_t i = 0; i < count; ++i) c->set_output(i, coming[i].tensor);
    meanwhile().leave(comm_);
  }

 private:
  bool is_far(int process) const { return std::find(far_.begin(), far_.end(), process) != far_.end(); }

  // Take the pieces of a message that are there, in their order; returns whether all are.
  bool take(Coming& one, size_t i, std::string* wrong) {
    const size_t wanted = one.tensor.TotalBytes();
    while (!one.left.empty()) {
      Piece& piece = one.left.front();
      const bool is_early = piece.early.dtype() == tensorflow::DT_UINT8;
      size_t bytes = is_early ? piece.early.TotalBytes() : 0;
      if (piece.request != MPI_REQUEST_NULL) {
        int done = 0, count = 0;
        MPI_Status status;
        const int code = MPI_Test(&piece.request, &done, &status);
        if (code != MPI_SUCCESS) *wrong = told(code);
        if (!done) return false;
        MPI_Get_count(&status, MPI_BYTE, &count);
        bytes = count;
      }
      const bool is_whole = one.left.size() == 1 && one.bytes == 0;
      if (one.bytes + bytes > wanted) {
        *wrong = unlike(one.bytes + bytes, sources_[i], wanted);
        return false;
      }
      if (is_early && !is_whole) {
        std::memcpy(static_cast<char*>(one.tensor.data()) + one.bytes, piece.early.data(), bytes);
      }
      one.bytes += bytes;
      one.left.pop_front();
    }
    if (one.bytes != wanted) *wrong = unlike(one.bytes, sources_[i], wanted);
    return one.bytes == wanted;
  }

  void arrived(double asked, size_t i, size_t bytes) {
    received_bytes[sources_[i] % kRanks] += bytes;
    ++received_messages[sources_[i] % kRanks];
    arrivals.add({asked, now_ns(CLOCK_REALTIME) / 1e9, double(sources_[i]), double(bytes)});
  }

  // MPI may still write into tensors whose messages were asked for: they are kept for ever.
  void give_up(OpKernelContext* c, std::vector<Coming>& coming, const std::string& why) {
    static std::mutex mutex;
    static std::vector<Coming>* kept = new std::vector<Coming>;
    std::lock_guard<std::mutex> lock(mutex);
    for (Coming& one : coming) {
      for (Piece& piece : one.left) {
        if (piece.request != MPI_REQUEST_NULL) MPI_Cancel(&piece.request);
      }
      if (!one.left.empty()) kept->push_back(one);
    }
    c->SetStatus(tensorflow::errors::Internal(why));
  }

  MPI_Comm comm_;
  std::vector<int32_t> targets_, target_tags_, sources_, source_tags_, far_;
  std::vector<int64_t> sizes_;
};

}  // namespace

REGISTER_OP("CingulumExchange")
    .Input("values: send_types")
    .Output("found: receive_types")
    .Attr("send_types: list(type) >= 0")
    .Attr("receive_types: list(type) >= 0")
    .Attr("comm: int")
    .Attr("targets: list(int) >= 0")
    .Attr("target_tags: list(int) >= 0")
    .Attr("sources: list(int) >= 0")
    .Attr("source_tags: list(int) >= 0")
    .Attr("sizes: list(int) >= 0")
    .Attr("far: list(int) >= 0")
    .SetIsStateful()
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext* c) {
      std::vector<int64_t> sizes;
      TF_RETURN_IF_ERROR(c->GetAttr("sizes", &sizes));
      for (size_t i = 0; i < sizes.size(); ++i) c->set_output(i, c->Vector(sizes[i]));
      return absl::OkStatus();
    });
REGISTER_KERNEL_BUILDER(Name("CingulumExchange").Device(tensorflow::DEVICE_CPU), ExchangeOp);

extern "C" {
uint64_t cingulum_early() { return meanwhile().there(); }
void cingulum_stop_listening() { meanwhile().stop_listening(); }
uint64_t cingulum_sent(int rank) { return sent_bytes[rank % kRanks]; }
uint64_t cingulum_received(int rank) { return received_bytes[rank % kRanks]; }
uint64_t cingulum_sent_messages(int rank) { return sent_messages[rank % kRanks]; }
uint64_t cingulum_received_messages(int rank) { return received_messages[rank % kRanks]; }
// Copies what arrived since the last call, at most `kKept` rows of four numbers; returns how many.
uint64_t cingulum_arrivals(double* into) { return arrivals.take(reinterpret_cast<Arrival*>(into)); }
}
