//! Engine thread. Runs one Tokio runtime, started after the fork, with a permanent Python thread state.

use std::{
    ops::Deref,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex, PoisonError},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use async_task::Runnable;
use penstock_core::{
    endpoints::management_proxy,
    gateway_state::GatewayState,
    ingress::Request,
    process::{
        background_threads::{LowerPriority, set_lower_priority},
        edge::{
            disconnect::Disconnector,
            idle_connections::{ConnectionTracker, IdleConnectionReaper, IdleTimeouts, RequestGuard},
        },
    },
};
use pyo3::{prelude::*, types::PyDict};
use tokio::{
    runtime::Handle,
    sync::{mpsc, oneshot},
};

use crate::{
    body_readers::{self, BodyReaders},
    exchange::{self, Exchange},
    peer,
};

/// Time limit for sending the last records at shutdown.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(3);

/// Request with the channel for its response.
pub struct Job {
    pub request: Request,
    pub exchange: Exchange,
}

/// Handle for submitting work to the engine.
#[derive(Clone)]
pub struct JobRunner(Arc<JobRunnerState>);

pub struct JobRunnerState {
    state: Arc<GatewayState>,
    handle: Handle,
    /// Readers of request bodies that wait for chunks.
    pub body_readers: BodyReaders,
    connections: Arc<ConnectionTracker>,
    disconnector: Arc<Disconnector>,
    /// Sender for tasks that are ready to run. There is at most one per request, so the number of connections bounds
    /// the queue.
    ready_tasks: mpsc::UnboundedSender<Runnable>,
}

impl Deref for JobRunner {
    type Target = JobRunnerState;

    fn deref(&self) -> &JobRunnerState {
        &self.0
    }
}

impl JobRunnerState {
    /// Runs a request on the calling thread until it has to wait, usually until it was sent upstream. The engine's
    /// thread resumes it when the response arrives, and is not woken before that.
    pub fn submit(&self, job: Job) {
        let task = self.create_request_task(job);
        let _context = self.handle.enter();
        run_task(task);
    }

    /// Runs a future on the engine's thread.
    pub fn spawn(&self, future: impl Future<Output = ()> + Send + 'static) {
        drop(self.handle.spawn(future));
    }

    /// Marks the connection of a request as busy until the returned guard is dropped.
    pub fn track_request(&self, scope: &Bound<'_, PyDict>) -> Option<RequestGuard> {
        let (caller, is_http2) = peer::client_address(scope)?;
        Some(self.connections.begin_request(caller, is_http2))
    }

    pub fn submit_if_some(&self, job: Option<Job>) {
        if let Some(job) = job {
            self.submit(job);
        }
    }

    fn create_request_task(&self, job: Job) -> Runnable {
        let state = Arc::clone(&self.state);
        let (ready, connections, disconnector) =
            (self.ready_tasks.clone(), Arc::clone(&self.connections), Arc::clone(&self.disconnector));
        create_task(self.ready_tasks.clone(), async move {
            if let Some(streaming) = exchange::serve_request(&state, &connections, job).await {
                run_task(create_task(ready, streaming.send_remaining(state, disconnector)));
            }
        })
    }

    /// Checks for slow bodies forever. Queues their jobs instead of running them at once, because there may be many.
    async fn poll_slow_bodies(&self) {
        loop {
            tokio::time::sleep(body_readers::POLL_INTERVAL).await;
            for job in self.body_readers.poll_readers() {
                self.create_request_task(job).schedule();
            }
        }
    }
}

/// Wraps a future into a task for the ready queue. If the runtime has ended, the task is dropped and its request gets
/// an error response.
fn create_task(ready: mpsc::UnboundedSender<Runnable>, future: impl Future<Output = ()> + Send + 'static) -> Runnable {
    let (task, handle) = async_task::spawn(future, move |task| drop(ready.send(task)));
    handle.detach();
    task
}

/// Runs a task until it waits. A panic ends only this task: dropping its state sends an error response and closes the
/// record.
fn run_task(task: Runnable) {
    drop(catch_unwind(AssertUnwindSafe(|| task.run())));
}

pub struct Runtime {
    job_runner: JobRunner,
    stop_sender: Mutex<Option<oneshot::Sender<()>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Runtime {
    pub fn start(state: Arc<GatewayState>, lower_priority: LowerPriority) -> std::io::Result<Self> {
        set_lower_priority(Arc::clone(&lower_priority));
        let (ready, queue) = mpsc::unbounded_channel();
        let (stop, stopped) = oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let callers = Arc::<ConnectionTracker>::default();
        let reaper = IdleConnectionReaper::new(
            state.settings.port,
            IdleTimeouts::from_settings(&state.settings),
            Arc::clone(&callers),
        );
        let runner_state = JobRunnerState {
            state: Arc::clone(&state),
            handle: runtime.handle().clone(),
            body_readers: BodyReaders::default(),
            connections: callers,
            disconnector: Arc::default(),
            ready_tasks: ready,
        };
        let jobs = JobRunner(Arc::new(runner_state));
        let engine_jobs = jobs.clone();
        let thread = std::thread::Builder::new().name("penstock-engine".into()).spawn(move || {
            // Attached once for the whole thread, so that later attachments reuse the thread state and are cheap.
            Python::attach(|py| {
                py.detach(|| runtime.block_on(run_engine(state, engine_jobs, reaper, lower_priority, queue, stopped)));
            });
        })?;
        Ok(Self { job_runner: jobs, stop_sender: Mutex::new(Some(stop)), thread: Mutex::new(Some(thread)) })
    }

    pub fn job_runner(&self) -> &JobRunner {
        &self.job_runner
    }

    pub fn end_streams_after(&self, state: Arc<GatewayState>, max_wait: Duration) {
        drop(self.job_runner.handle.spawn(async move {
            tokio::time::sleep(max_wait).await;
            state.end_streams();
        }));
    }

    /// Stops the thread and waits for its end. The caller must have released the interpreter, because the thread may
    /// need it.
    pub fn stop(&self) {
        if let Some(stop) = self.stop_sender.lock().unwrap_or_else(PoisonError::into_inner).take() {
            stop.send(()).ok();
        }
        if let Some(thread) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take() {
            drop(thread.join());
        }
    }
}

/// Closes idle client connections forever.
async fn end_idle_connections(mut watch: IdleConnectionReaper) {
    loop {
        tokio::time::sleep(watch.poll_interval()).await;
        let check = move || {
            // If the query of the kernel fails, no connection is closed.
            drop(watch.close_expired(Instant::now()));
            watch
        };
        match tokio::task::spawn_blocking(check).await {
            Ok(reaper) => watch = reaper,
            Err(_) => return,
        }
    }
}

async fn run_engine(
    state: Arc<GatewayState>,
    jobs: JobRunner,
    reaper: IdleConnectionReaper,
    lower_priority: LowerPriority,
    mut queue: mpsc::UnboundedReceiver<Runnable>,
    mut stopped: oneshot::Receiver<()>,
) {
    let disconnector = Arc::clone(&jobs.disconnector);
    let background = [
        tokio::spawn(management_proxy::report_metrics(Arc::clone(&state))),
        tokio::spawn(management_proxy::follow_snapshots(Arc::clone(&state), lower_priority)),
        tokio::spawn(management_proxy::maintain_shared_state(Arc::clone(&state))),
        tokio::spawn(end_idle_connections(reaper)),
        tokio::spawn(async move { disconnector.run().await }),
        tokio::spawn(async move { jobs.poll_slow_bodies().await }),
    ];
    loop {
        tokio::select! {
            biased;
            task = queue.recv() => match task {
                Some(task) => run_task(task),
                None => break,
            },
            _ = &mut stopped => break,
        }
    }
    for task in background {
        task.abort();
    }
    management_proxy::flush_records(&state, FLUSH_TIMEOUT).await;
}
