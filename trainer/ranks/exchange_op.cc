// A TensorFlow operation that sends tensors to other ranks and waits for those that it is to receive.
//
// It sends from and receives into the tensors themselves. While it waits, its thread looks for messages without
// a pause, then with short ones: it has nothing else to do. What is still leaving when it returns is watched by
// a thread of its own, since MPI moves large messages only while somebody calls it.
//
// Processors only: on a GPU, TensorFlow brings tensors to the host and back. Not run on a GPU.

#include <mpi.h>
#include <sched.h>
#include <time.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

constexpr int64_t kAtOnceNs = 5'000'000;
constexpr long kPauseNs = 50'000;
// A rank that computes for longer between two messages hangs.
constexpr int64_t kLimitNs = 3'600'000'000'000;
constexpr int kRanks = 4096;

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

void pause() {
  timespec t{0, kPauseNs};
  nanosleep(&t, nullptr);
}

// Messages that are leaving, with the tensors that they leave from.
class Leaving {
 public:
  void add(MPI_Request request, const Tensor& tensor) {
    std::lock_guard<std::mutex> lock(mutex_);
    requests_.push_back(request);
    tensors_.push_back(tensor);
  }

  void look() {
    std::lock_guard<std::mutex> lock(mutex_);
    test();
  }

  // Leave the rest to a thread.
  void leave() {
    std::lock_guard<std::mutex> lock(mutex_);
    test();
    if (requests_.empty()) return;
    if (!started_) {
      started_ = true;
      std::thread([this] { run(); }).detach();
    }
    there_.notify_one();
  }

 private:
  void test() {
    for (size_t i = 0; i < requests_.size();) {
      int done = 0;
      MPI_Test(&requests_[i], &done, MPI_STATUS_IGNORE);
      if (!done) {
        ++i;
        continue;
      }
      requests_.erase(requests_.begin() + i);
      tensors_.erase(tensors_.begin() + i);
    }
  }

  void run() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
      there_.wait(lock, [this] { return !requests_.empty(); });
      test();
      lock.unlock();
      pause();
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable there_;
  std::deque<MPI_Request> requests_;
  std::deque<Tensor> tensors_;
  bool started_ = false;
};

Leaving& leaving() {
  static Leaving* one = new Leaving;  // lives as long as its thread
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
  }

  void Compute(OpKernelContext* c) override {
    const int64_t began = now_ns();
    const double asked = now_ns(CLOCK_REALTIME) / 1e9;
    const size_t count = sources_.size();
    std::vector<Tensor*> into(count);
    for (size_t i = 0; i < count; ++i) {
      OP_REQUIRES_OK(c, c->allocate_output(i, TensorShape({sizes_[i]}), &into[i]));
    }
    std::vector<MPI_Request> arriving(count, MPI_REQUEST_NULL);
    for (size_t i = 0; i < count; ++i) {
      const int code = MPI_Irecv(into[i]->data(), into[i]->TotalBytes(), MPI_BYTE, sources_[i], source_tags_[i],
                                 comm_, &arriving[i]);
      if (code != MPI_SUCCESS) return give_up(c, arriving, into, told(code));
    }
    for (size_t i = 0; i < targets_.size(); ++i) {
      const Tensor& from = c->input(i);
      MPI_Request request = MPI_REQUEST_NULL;
      const int code =
          MPI_Isend(from.data(), from.TotalBytes(), MPI_BYTE, targets_[i], target_tags_[i], comm_, &request);
      if (code != MPI_SUCCESS) return give_up(c, arriving, into, told(code));
      leaving().add(request, from);
      sent_bytes[targets_[i] % kRanks] += from.TotalBytes();
      ++sent_messages[targets_[i] % kRanks];
    }
    std::vector<MPI_Status> statuses(count);
    std::vector<int> there(count);
    for (size_t left = count; left != 0;) {
      int some = 0;
      const int code = MPI_Testsome(count, arriving.data(), &some, there.data(), statuses.data());
      if (code != MPI_SUCCESS) return give_up(c, arriving, into, told(code));
      for (int k = 0; k < some; ++k) {
        const int i = there[k];
        int bytes = 0;
        MPI_Get_count(&statuses[k], MPI_BYTE, &bytes);
        if (static_cast<size_t>(bytes) != into[i]->TotalBytes()) {
          return give_up(c, arriving, into,
                         "a message of " + std::to_string(bytes) + " bytes came from process " +
                             std::to_string(sources_[i]) + " in place of " + std::to_string(into[i]->TotalBytes()));
        }
        received_bytes[sources_[i] % kRanks] += bytes;
        ++received_messages[sources_[i] % kRanks];
        arrivals.add({asked, now_ns(CLOCK_REALTIME) / 1e9, double(sources_[i]), double(bytes)});
      }
      left -= some;
      if (left == 0) break;
      leaving().look();
      const int64_t waited = now_ns() - began;
      if (waited > kLimitNs) {
        std::string late;
        for (size_t i = 0; i < count; ++i) {
          if (arriving[i] != MPI_REQUEST_NULL) late += (late.empty() ? "" : ", ") + std::to_string(sources_[i]);
        }
        return give_up(c, arriving, into, "no message within 3600 s from process " + late);
      }
      if (waited < kAtOnceNs) {
        sched_yield();
      } else {
        pause();
      }
    }
    leaving().leave();
  }

 private:
  static std::string told(int code) {
    char text[MPI_MAX_ERROR_STRING];
    int length = 0;
    MPI_Error_string(code, text, &length);
    return std::string(text, length);
  }

  // MPI may still write into tensors whose messages were asked for: they are kept for ever.
  void give_up(OpKernelContext* c, std::vector<MPI_Request>& arriving, const std::vector<Tensor*>& into,
               const std::string& why) {
    static std::mutex mutex;
    static std::vector<Tensor>* kept = new std::vector<Tensor>;
    std::lock_guard<std::mutex> lock(mutex);
    for (size_t i = 0; i < arriving.size(); ++i) {
      if (arriving[i] == MPI_REQUEST_NULL) continue;
      MPI_Cancel(&arriving[i]);
      kept->push_back(*into[i]);
    }
    c->SetStatus(tensorflow::errors::Internal(why));
  }

  MPI_Comm comm_;
  std::vector<int32_t> targets_, target_tags_, sources_, source_tags_;
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
    .SetIsStateful()
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext* c) {
      std::vector<int64_t> sizes;
      TF_RETURN_IF_ERROR(c->GetAttr("sizes", &sizes));
      for (size_t i = 0; i < sizes.size(); ++i) c->set_output(i, c->Vector(sizes[i]));
      return absl::OkStatus();
    });
REGISTER_KERNEL_BUILDER(Name("CingulumExchange").Device(tensorflow::DEVICE_CPU), ExchangeOp);

extern "C" {
uint64_t cingulum_sent(int rank) { return sent_bytes[rank % kRanks]; }
uint64_t cingulum_received(int rank) { return received_bytes[rank % kRanks]; }
uint64_t cingulum_sent_messages(int rank) { return sent_messages[rank % kRanks]; }
uint64_t cingulum_received_messages(int rank) { return received_messages[rank % kRanks]; }
// Copies what arrived since the last call, at most `kKept` rows of four numbers; returns how many.
uint64_t cingulum_arrivals(double* into) { return arrivals.take(reinterpret_cast<Arrival*>(into)); }
}
