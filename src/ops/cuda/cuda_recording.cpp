// Recordings are CUDA graphs, captured from the stream.
#include "base/error.h"
#include "ops/cuda/cuda_backend.h"
#include "ops/cuda/cuda_check.h"

namespace braid {
namespace {

class CudaRecording final : public Recording {
 public:
  CudaRecording(cudaGraph_t graph, const ScratchMark& scratch) : scratch_(scratch) {
    size_t n = 0;
    CUDA_CHECK(cudaGraphGetNodes(graph, nullptr, &n));
    n_nodes_ = static_cast<int64_t>(n);
    CUDA_CHECK(cudaGraphInstantiate(&executable_, graph, 0));
  }
  ~CudaRecording() override { cudaGraphExecDestroy(executable_); }

  int64_t n_nodes() const override { return n_nodes_; }
  cudaGraphExec_t executable() const { return executable_; }
  const ScratchMark& scratch() const { return scratch_; }

 private:
  cudaGraphExec_t executable_ = nullptr;
  ScratchMark scratch_;  // taken by the recorded work
  int64_t n_nodes_ = 0;
};

}  // namespace

// Thread local: other ranks of this process may allocate meanwhile.
void CudaBackend::begin_recording() { CUDA_CHECK(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal)); }

std::unique_ptr<Recording> CudaBackend::end_recording() {
  cudaGraph_t graph = nullptr;
  CUDA_CHECK(cudaStreamEndCapture(stream_, &graph));
  auto recording = std::make_unique<CudaRecording>(graph, memory_.mark());
  CUDA_CHECK(cudaGraphDestroy(graph));
  CUDA_CHECK(cudaGraphUpload(recording->executable(), stream_));
  return recording;
}

void CudaBackend::replay(const Recording& r) {
  const auto& recording = static_cast<const CudaRecording&>(r);
  CUDA_CHECK(cudaGraphLaunch(recording.executable(), stream_));
  memory_.release(recording.scratch());
}

}  // namespace braid
