//! The engine's own thread: one runtime, started after the fork, that keeps its interpreter thread state.

use std::{
    sync::{Arc, Mutex, PoisonError},
    thread::JoinHandle,
    time::Duration,
};

use penstock_core::{
    control,
    gateway::{Gateway, Request},
};
use pyo3::prelude::*;
use tokio::{
    runtime::Handle,
    sync::{mpsc, oneshot},
};

use crate::exchange::{self, Exchange};

/// How long the last records may take to leave.
const FLUSH: Duration = Duration::from_secs(3);

/// A request and the way back to its caller.
pub struct Job {
    pub request: Request,
    pub exchange: Exchange,
}

/// The way into the engine's thread. Its length is bounded by the number of open connections.
#[derive(Clone)]
pub struct Jobs(mpsc::UnboundedSender<Job>);

impl Jobs {
    pub fn submit(&self, job: Job) {
        // Where the runtime has ended the job is dropped, and so answered with an error.
        drop(self.0.send(job));
    }
}

pub struct Runtime {
    jobs: Jobs,
    handle: Handle,
    stop: Mutex<Option<oneshot::Sender<()>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Runtime {
    pub fn start(gateway: Arc<Gateway>) -> std::io::Result<Self> {
        let (jobs, queue) = mpsc::unbounded_channel();
        let (stop, stopped) = oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let thread = std::thread::Builder::new().name("penstock-engine".into()).spawn(move || {
            // Attached once around everything: later attachments find their thread state and are cheap.
            Python::attach(|py| py.detach(|| runtime.block_on(run(gateway, queue, stopped))));
        })?;
        Ok(Self { jobs: Jobs(jobs), handle, stop: Mutex::new(Some(stop)), thread: Mutex::new(Some(thread)) })
    }

    pub fn jobs(&self) -> Jobs {
        self.jobs.clone()
    }

    pub fn end_streams_after(&self, gateway: Arc<Gateway>, patience: Duration) {
        drop(self.handle.spawn(async move {
            tokio::time::sleep(patience).await;
            gateway.end_streams();
        }));
    }

    /// Waits for the thread's end; the interpreter must be released meanwhile.
    pub fn stop(&self) {
        if let Some(stop) = self.stop.lock().unwrap_or_else(PoisonError::into_inner).take() {
            stop.send(()).ok();
        }
        if let Some(thread) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take() {
            drop(thread.join());
        }
    }
}

async fn run(gateway: Arc<Gateway>, mut queue: mpsc::UnboundedReceiver<Job>, mut stopped: oneshot::Receiver<()>) {
    let background = [
        tokio::spawn(control::ship_records(Arc::clone(&gateway))),
        tokio::spawn(control::tell_metrics(Arc::clone(&gateway))),
        tokio::spawn(control::follow_snapshots(Arc::clone(&gateway))),
    ];
    loop {
        let job = tokio::select! {
            biased;
            job = queue.recv() => job,
            _ = &mut stopped => None,
        };
        let Some(job) = job else { break };
        let gateway = Arc::clone(&gateway);
        tokio::spawn(async move { exchange::serve(&gateway, job).await });
    }
    for task in background {
        task.abort();
    }
    control::flush_records(&gateway, FLUSH).await;
}
