//! The engine's own thread: one runtime, started after the fork, that keeps its interpreter thread state.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex, PoisonError},
    thread::JoinHandle,
    time::Duration,
};

use async_task::Runnable;
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

/// The way into the engine.
#[derive(Clone)]
pub struct Jobs {
    gateway: Arc<Gateway>,
    handle: Handle,
    /// Tasks that can go on; as many as there are requests, which the number of connections bounds.
    ready: mpsc::UnboundedSender<Runnable>,
}

impl Jobs {
    /// Begins a request here and now, on the thread that brought it, as far as it goes without waiting: usually until it
    /// was sent upstream. The engine's thread goes on when the answer comes, and is not woken a second time before.
    pub fn submit(&self, job: Job) {
        let gateway = Arc::clone(&self.gateway);
        let ready = self.ready.clone();
        let work = async move { exchange::serve(&gateway, job).await };
        // Where the runtime has ended the task is dropped, and so its request is answered with an error.
        let (task, handle) = async_task::spawn(work, move |task| drop(ready.send(task)));
        handle.detach();
        let _context = self.handle.enter();
        advance(task);
    }
}

/// Lets a task go on. A panic ends this one alone: what it held is dropped, which answers the caller and closes the record.
fn advance(task: Runnable) {
    drop(catch_unwind(AssertUnwindSafe(|| task.run())));
}

pub struct Runtime {
    jobs: Jobs,
    stop: Mutex<Option<oneshot::Sender<()>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Runtime {
    pub fn start(gateway: Arc<Gateway>) -> std::io::Result<Self> {
        let (ready, queue) = mpsc::unbounded_channel();
        let (stop, stopped) = oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let jobs = Jobs { gateway: Arc::clone(&gateway), handle: runtime.handle().clone(), ready };
        let thread = std::thread::Builder::new().name("penstock-engine".into()).spawn(move || {
            // Attached once around everything: later attachments find their thread state and are cheap.
            Python::attach(|py| py.detach(|| runtime.block_on(run(gateway, queue, stopped))));
        })?;
        Ok(Self { jobs, stop: Mutex::new(Some(stop)), thread: Mutex::new(Some(thread)) })
    }

    pub fn jobs(&self) -> &Jobs {
        &self.jobs
    }

    pub fn end_streams_after(&self, gateway: Arc<Gateway>, patience: Duration) {
        drop(self.jobs.handle.spawn(async move {
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

async fn run(gateway: Arc<Gateway>, mut queue: mpsc::UnboundedReceiver<Runnable>, mut stopped: oneshot::Receiver<()>) {
    let (stop_shipping, stop) = oneshot::channel();
    let shipping = tokio::spawn(control::ship_records(Arc::clone(&gateway), stop));
    let background = [
        tokio::spawn(control::tell_metrics(Arc::clone(&gateway))),
        tokio::spawn(control::follow_snapshots(Arc::clone(&gateway))),
    ];
    loop {
        tokio::select! {
            biased;
            task = queue.recv() => match task {
                Some(task) => advance(task),
                None => break,
            },
            _ = &mut stopped => break,
        }
    }
    for task in background {
        task.abort();
    }
    stop_shipping.send(()).ok();
    drop(tokio::time::timeout(FLUSH, shipping).await);
    control::flush_records(&gateway, FLUSH).await;
}
