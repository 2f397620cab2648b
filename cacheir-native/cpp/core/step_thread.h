// A thread that runs a step while its owner does something else, one step at a time.
#pragma once
#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

namespace cacheir {

class StepThread {
 public:
  StepThread() = default;
  ~StepThread();  // waits for what is under way
  StepThread(const StepThread&) = delete;
  StepThread& operator=(const StepThread&) = delete;

  // Begins `work`, once what was begun before is done. The thread itself begins with the first.
  void start(std::function<void()> work);

  // Returns once nothing is under way; throws what the work threw, the first time.
  void wait();

  // Whether something is under way.
  bool busy();

  // As wait(), but what was thrown is left for it.
  void settle();

 private:
  void loop();

  std::mutex mutex_;
  std::condition_variable begun_, done_;
  std::function<void()> work_;
  std::exception_ptr error_;
  bool busy_ = false, stop_ = false;
  std::thread thread_;
};

}  // namespace cacheir
