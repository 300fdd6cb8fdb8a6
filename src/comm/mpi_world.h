// The world of ranks spread over the processes of mpirun: groups over MpiLink, the control channel, and a watch thread
// that tells the others where our ranks are, looks after the other processes and mpirun, and owns SIGTERM.
#pragma once
#include <atomic>
#include <functional>
#include <mutex>
#include <thread>

#include "comm/mpi_run.h"
#include "comm/world.h"

namespace braid {

class MpiWorld final : public HostWorld {
 public:
  MpiWorld(const WorldOptions& options, std::shared_ptr<MpiRun> run, int ranks_on_host);
  ~MpiWorld() override;

  void control_send(std::span<const std::byte> message) override;
  std::vector<std::byte> control_receive() override;
  void set_terminate_handler(std::function<void()> handler) override;
  int first_on_host() const override;

 protected:
  std::shared_ptr<ProcessLink> link(uint64_t id, const std::string& name, const std::vector<int>& ranks,
                                    const std::vector<HostGroup::Share>& shares) override;

 private:
  std::vector<std::shared_ptr<Mailbox::Sending>> send_to_others(const std::shared_ptr<Packet>& packet);
  bool say_goodbye();

  // The watch thread: mpi_watch.cpp.
  void start_watch();
  void stop_watch();
  void watch();
  void tick();
  void take_news();
  void send_heartbeats();
  void check_processes();
  void report_lost(int process, const char* what);
  void end_by_signal();

  const std::shared_ptr<MpiRun> mpi_;
  std::thread watch_;
  std::atomic<bool> stop_{false};
  std::mutex handler_mutex_;
  std::function<void()> terminate_handler_;
  // The watch thread's own.
  std::vector<std::shared_ptr<Mailbox::Sending>> heartbeats_;  // the last to each process
  std::vector<int> stopped_ticks_, silent_ticks_;
  bool told_failure_ = false;
  int parent_ = 0;
};

}  // namespace braid
