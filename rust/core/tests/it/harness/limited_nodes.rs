//! Nodes that share limits through a real Redis server, and requests that only take and settle amounts.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use penstock_core::limits::{
    hold::{Hold, RuleRef, TakeTurn},
    limiter::Limiter,
    now_ms,
    rule::WorkspaceLimits,
};
use penstock_mock::Server;
use serde_json::{Value, json};
use tokio::{task::JoinSet, time::sleep};

use super::{
    TestGateway,
    redis_server::{MAX_REDIS_WAIT, start_node_that_waits},
    wait_until,
};

pub const NODES: usize = 3;

pub fn rule(fields: &Value) -> RuleRef {
    let mut row =
        json!({"id": "l", "owner": {"kind": "policy", "id": "p", "slug": "p"}, "type": "requests", "limit": 10});
    row.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    let limits = WorkspaceLimits::compile(serde_json::from_value(json!([row])).unwrap(), "o", "$", &mut Vec::new());
    RuleRef { rules: limits.all.unwrap(), index: 0 }
}

/// Returns the rule of a cost budget. Tests do not share it, because each test has a Redis server of its own.
pub fn budget(limit: u64, enforcement: &str) -> RuleRef {
    rule(&json!({"type": "cost", "limit": limit, "period": {"start": 1}, "enforcement": enforcement}))
}

/// Reserves an amount as a request does: from the lease, else after a new lease from Redis, else from whatever is left.
pub async fn admit(limiter: &Limiter, rule: &RuleRef, amount: u64) -> Option<Hold> {
    for _ in 0..2 {
        if let Ok((hold, _)) = limiter.take_once(rule.clone(), "", amount, TakeTurn::default(), now_ms()) {
            return Some(hold);
        }
        limiter.acquire(rule, "", amount).await;
    }
    limiter.take_once(rule.clone(), "", amount, TakeTurn::LAST, now_ms()).ok().map(|(hold, _)| hold)
}

/// Nodes that share limits through Redis.
pub struct LimitedNodes {
    pub nodes: Vec<TestGateway>,
    reports: JoinSet<()>,
}

impl LimitedNodes {
    pub async fn start(url: &str) -> Self {
        Self::start_that_wait(url, MAX_REDIS_WAIT).await
    }

    /// Starts nodes that treat Redis as unavailable if it does not reply within `max_wait`.
    pub async fn start_that_wait(url: &str, max_wait: Duration) -> Self {
        Self::start_each(&[url; NODES], max_wait).await
    }

    /// Starts a node for each address of Redis.
    pub async fn start_each(urls: &[&str], max_wait: Duration) -> Self {
        let provider = Server::start().await;
        let (mut nodes, mut reports) = (Vec::new(), JoinSet::new());
        for url in urls {
            let node = start_node_that_waits(&provider.url(), url, max_wait).await;
            let limiter = Arc::clone(&node.state.limiter);
            reports.spawn(async move {
                loop {
                    limiter.report_shared(false).await;
                    sleep(Duration::from_millis(50)).await;
                }
            });
            nodes.push(node);
        }
        // Waits until each node knows the others. Otherwise a node would use the whole limit as its share while Redis
        // does not reply.
        for node in &nodes {
            let limiter = &node.state.limiter;
            wait_until("the nodes know of each other", || {
                limiter.cluster().is_some_and(|cluster| cluster.known_members() >= urls.len() as u64)
            })
            .await;
        }
        Self { nodes, reports }
    }

    pub fn limiters(&self) -> Vec<Arc<Limiter>> {
        self.nodes.iter().map(|node| Arc::clone(&node.state.limiter)).collect()
    }

    /// Spends from all nodes at once: each of `callers` on each node sends `count` requests. Returns what was used.
    pub async fn spend(&self, rule: &RuleRef, callers: usize, count: usize, max_spent: u64) -> u64 {
        let used = Arc::<AtomicU64>::default();
        let mut tasks = JoinSet::new();
        for limiter in self.limiters() {
            for caller in 0..callers {
                let (limiter, rule, used) = (Arc::clone(&limiter), rule.clone(), Arc::clone(&used));
                tasks.spawn(async move {
                    let mut random = fastrand::Rng::with_seed(caller as u64);
                    for _ in 0..count {
                        let Some(hold) = admit(&limiter, &rule, max_spent).await else { continue };
                        tokio::task::yield_now().await;
                        let spent = random.u64(1..=hold.amount);
                        used.fetch_add(spent, Ordering::Relaxed);
                        limiter.settle(&hold, spent, now_ms());
                    }
                });
            }
        }
        while tasks.join_next().await.is_some() {}
        used.load(Ordering::Relaxed)
    }
}

impl Drop for LimitedNodes {
    fn drop(&mut self) {
        self.reports.abort_all();
    }
}
