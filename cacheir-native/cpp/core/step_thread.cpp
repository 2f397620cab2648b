// The thread that runs a step beside its owner. The hand-over is a mutex and two conditions: a few microseconds, which is
// why small steps do not come here.
#include "core/step_thread.h"

#include <utility>

namespace cacheir {

StepThread::~StepThread() {
  if (!thread_.joinable()) return;
  {
    std::unique_lock<std::mutex> lock(mutex_);
    done_.wait(lock, [this] { return !busy_; });
    stop_ = true;
  }
  begun_.notify_one();
  thread_.join();
}

void StepThread::start(std::function<void()> work) {
  {
    std::unique_lock<std::mutex> lock(mutex_);
    done_.wait(lock, [this] { return !busy_; });
    if (!thread_.joinable()) thread_ = std::thread([this] { loop(); });
    work_ = std::move(work);
    error_ = nullptr;
    busy_ = true;
  }
  begun_.notify_one();
}

bool StepThread::busy() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return busy_;
}

void StepThread::settle() {
  std::unique_lock<std::mutex> lock(mutex_);
  done_.wait(lock, [this] { return !busy_; });
}

void StepThread::wait() {
  std::unique_lock<std::mutex> lock(mutex_);
  done_.wait(lock, [this] { return !busy_; });
  if (std::exception_ptr error = std::exchange(error_, nullptr)) std::rethrow_exception(error);
}

void StepThread::loop() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    begun_.wait(lock, [this] { return busy_ || stop_; });
    if (stop_) return;
    const std::function<void()> work = std::exchange(work_, nullptr);
    lock.unlock();
    std::exception_ptr error;
    try {
      work();
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    error_ = error;
    busy_ = false;
    done_.notify_all();
  }
}

}  // namespace cacheir
