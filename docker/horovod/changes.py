"""What is changed in Horovod 0.28.1 before it is compiled; docs/decisions/0001 and 0029 say why.

Each change names the text that it takes the place of, which must be there exactly once. Standard
library only.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path


class ChangeError(Exception):
    """A text to change is not where it was; the message names the file."""


@dataclasses.dataclass(frozen=True)
class Change:
    """One text of one source file, and what takes its place.

    Attributes:
        path: of the file, inside the source tree.
        old: the text as it was released.
        new: the text to compile.
    """

    path: str
    old: str
    new: str


# TensorFlow >= 2.19 moved the headers that this source file includes.
LEAVE_OUT_XLA = (
    Change(
        "horovod/tensorflow/CMakeLists.txt",
        'list(APPEND TF_SOURCES "${PROJECT_SOURCE_DIR}/horovod/tensorflow/xla_mpi_ops.cc")',
        "",
    ),
)

# Open MPI's Python package is looked for in the environment into which the wheel is installed, not in that
# which built it. Of a build for GPUs the folders of the other libraries are kept after it.
_NAMED = 'set_target_properties(${TF_TARGET_LIB} PROPERTIES OUTPUT_NAME "mpi_lib")\n'
FIND_MPI_OF_ITS_ENVIRONMENT = (
    Change(
        "horovod/tensorflow/CMakeLists.txt",
        _NAMED,
        _NAMED
        + """set_target_properties(${TF_TARGET_LIB} PROPERTIES
    BUILD_WITH_INSTALL_RPATH TRUE
    INSTALL_RPATH "\\$ORIGIN/../../../.."
    INSTALL_RPATH_USE_LINK_PATH "${HAVE_CUDA}")
""",
    ),
)

# NCCL of NVIDIA's wheel is looked for in the environment into which Horovod's wheel is installed.
_OF_MPI, _OF_NCCL = 'INSTALL_RPATH "\\$ORIGIN/../../../.."', "\\$ORIGIN/../../nvidia/nccl/lib"
FIND_NCCL_BESIDE_MPI = (Change("horovod/tensorflow/CMakeLists.txt", _OF_MPI, f'{_OF_MPI[:-1]};{_OF_NCCL}"'),)
FIND_NCCL = (
    Change(
        "horovod/tensorflow/CMakeLists.txt",
        _NAMED,
        f'{_NAMED}set_target_properties(${{TF_TARGET_LIB}} PROPERTIES BUILD_RPATH "{_OF_NCCL}")\n',
    ),
)

_STREAM_HEADERS_END = """#include "tensorflow/stream_executor/stream.h"
#endif // TENSORFLOW_VERSION >= 2011000000
"""

# For GPUs: TensorFlow no longer exports the function that Horovod declares; a stream tells the same itself.
ASK_STREAM_ITSELF = (
    Change(
        "horovod/tensorflow/mpi_ops.cc",
        "GpuStreamHandle AsGpuStreamValue(Stream* stream);\n",
        "",
    ),
    Change(
        "horovod/tensorflow/mpi_ops.cc",
        _STREAM_HEADERS_END,
        _STREAM_HEADERS_END
        + """
namespace stream_executor {
namespace gpu {
inline GpuStreamHandle AsGpuStreamValue(Stream* stream) {
  return static_cast<GpuStreamHandle>(stream->platform_specific_handle().stream);
}
} // namespace gpu
} // namespace stream_executor
""",
    ),
)

_SLEEP = """  auto sleep_duration = state.last_cycle_start +
                        std::chrono::microseconds(long(
                            state.parameter_manager.CycleTimeMs() * 1000.)) -
                        start_time;
  if (sleep_duration > std::chrono::steady_clock::duration::zero()) {
    std::this_thread::sleep_for(sleep_duration);
  }
"""

_SLEEP_OR_WORK = """\
  // With HOROVOD_IDLE_CYCLE_TIME (ms) above the cycle time, a process in which nothing is pending sleeps
  // so long, and every process wakes up as soon as a tensor is enqueued. Without it: as released.
  static const double idle_ms =
      GetDoubleEnvOrDefault("HOROVOD_IDLE_CYCLE_TIME", 0.0);
  double cycle_ms = state.parameter_manager.CycleTimeMs();
  bool wakes = idle_ms > cycle_ms;
  if (wakes) {
    bool pending = false;
    for (auto process_set_id : state.process_set_table.Ids()) {
      pending |= state.process_set_table.Get(process_set_id)
                     .tensor_queue.HasPendingTensors();
    }
    if (!pending) {
      cycle_ms = idle_ms;
    }
  }
  auto sleep_duration = state.last_cycle_start +
                        std::chrono::microseconds(long(cycle_ms * 1000.)) -
                        start_time;
  if (sleep_duration > std::chrono::steady_clock::duration::zero()) {
    if (wakes) {
      EnqueuedWork::Instance().WaitFor(sleep_duration);
    } else {
      std::this_thread::sleep_for(sleep_duration);
    }
  }
"""

_QUEUE = "horovod/common/tensor_queue"

# The thread that negotiates wakes up when there is something to negotiate, and not every millisecond.
WAKE_ON_WORK = (
    Change("horovod/common/operations.cc", _SLEEP, _SLEEP_OR_WORK),
    Change(
        f"{_QUEUE}.h",
        "#include <mutex>\n#include <queue>\n",
        "#include <chrono>\n#include <condition_variable>\n#include <mutex>\n#include <queue>\n",
    ),
    Change(
        f"{_QUEUE}.h",
        "class TensorQueue {\npublic:\n",
        """// Says that a tensor was enqueued, in whichever process set, since it was last waited for.
class EnqueuedWork {
public:
  static EnqueuedWork& Instance();

  void Notify();

  // Return when there is new work, or after so long.
  void WaitFor(std::chrono::steady_clock::duration duration);

private:
  std::mutex mutex_;
  std::condition_variable arrived_;
  bool has_arrived_ = false;
};

class TensorQueue {
public:
  // Whether a tensor waits for other processes.
  bool HasPendingTensors() const;

""",
    ),
    Change(
        f"{_QUEUE}.cc",
        "// Add a TensorTableEntry as well as its message to the queue.\n",
        """EnqueuedWork& EnqueuedWork::Instance() {
  // Never destroyed: the background thread may outlive static objects.
  static EnqueuedWork* instance = new EnqueuedWork();
  return *instance;
}

void EnqueuedWork::Notify() {
  {
    std::lock_guard<std::mutex> guard(mutex_);
    has_arrived_ = true;
  }
  arrived_.notify_one();
}

void EnqueuedWork::WaitFor(std::chrono::steady_clock::duration duration) {
  std::unique_lock<std::mutex> lock(mutex_);
  arrived_.wait_for(lock, duration, [this] { return has_arrived_; });
  has_arrived_ = false;
}

bool TensorQueue::HasPendingTensors() const {
  std::lock_guard<std::mutex> guard(mutex_);
  return !tensor_table_.empty();
}

// Add a TensorTableEntry as well as its message to the queue.
""",
    ),
    Change(
        f"{_QUEUE}.cc",
        """  tensor_table_.emplace(e.tensor_name, std::move(e));
  message_queue_.push(std::move(message));
  return Status::OK();
""",
        """  tensor_table_.emplace(e.tensor_name, std::move(e));
  message_queue_.push(std::move(message));
  EnqueuedWork::Instance().Notify();
  return Status::OK();
""",
    ),
    Change(
        f"{_QUEUE}.cc",
        """    message_queue_.push(std::move(messages[i]));
  }
  return Status::OK();
""",
        """    message_queue_.push(std::move(messages[i]));
  }
  EnqueuedWork::Instance().Notify();
  return Status::OK();
""",
    ),
)


def apply(tree: Path, changes: Sequence[Change]) -> None:
    """Make changes in an unpacked source distribution.

    Raises:
        ChangeError: a text is missing or there several times; files changed before it stay changed.
    """
    for change in changes:
        path = tree / change.path
        text = path.read_text(encoding="utf-8")
        if text.count(change.old) != 1:
            raise ChangeError(
                f"{change.path}: the lines to change are gone; see docs/decisions/0001-installation.md"
            )
        path.write_text(text.replace(change.old, change.new), encoding="utf-8")
