//! Threads for work that takes long, such as checks of large texts. They have a lower priority than the threads that
//! serve requests on the same cores.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        mpsc::{Receiver, Sender, channel},
    },
    thread,
    time::Duration,
};

use tokio::sync::oneshot;

use super::preempt::BurstTicker;

/// Lowers the priority of the calling thread, so that it yields to threads that serve requests on the same core.
pub type LowerPriority = Arc<dyn Fn() + Send + Sync>;

type Job = Box<dyn FnOnce() + Send>;

/// Interval at which the kernel is made to check whether a thread that serves requests should run instead.
const PREEMPTION_INTERVAL: Duration = Duration::from_micros(250);

static LOWER_PRIORITY: OnceLock<LowerPriority> = OnceLock::new();

/// Sets the function that lowers the priority of the threads. Without it, they have the normal priority.
pub fn set_lower_priority(lower_priority: LowerPriority) {
    let _ = LOWER_PRIORITY.set(lower_priority);
}

/// A fixed number of threads. The caller must bound the number of jobs that wait.
pub struct BackgroundThreads {
    jobs: Sender<Job>,
    ticker: Option<BurstTicker>,
}

impl BackgroundThreads {
    /// Starts the threads. Call it after the process has forked.
    pub fn start(name: &str, count: usize) -> Self {
        let (jobs, queue) = channel();
        let queue = Arc::new(Mutex::new(queue));
        for _ in 0..count {
            let queue = Arc::clone(&queue);
            // Without any thread, each job fails as if the process shut down.
            drop(thread::Builder::new().name(name.to_owned()).spawn(move || run_jobs(&queue)));
        }
        Self { jobs, ticker: BurstTicker::start(PREEMPTION_INTERVAL).ok() }
    }

    /// Runs a job, and returns its result; `None` if it panics.
    pub async fn run<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        let (done, result) = oneshot::channel();
        let job = Box::new(move || drop(done.send(job())));
        self.jobs.send(job).ok()?;
        if let Some(ticker) = &self.ticker {
            ticker.announce_burst();
        }
        result.await.ok()
    }
}

fn run_jobs(queue: &Mutex<Receiver<Job>>) {
    if let Some(lower_priority) = LOWER_PRIORITY.get() {
        lower_priority();
    }
    loop {
        let job = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(job) = job else { return };
        // A panic ends one check, not the thread.
        drop(catch_unwind(AssertUnwindSafe(job)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn returns_results_and_survives_a_panic() {
        let threads = BackgroundThreads::start("test", 1);
        assert_eq!(threads.run(|| 1 + 1).await, Some(2));
        assert_eq!(threads.run(|| panic!("on purpose")).await, None::<()>);
        assert_eq!(threads.run(|| "next").await, Some("next"));
    }
}
