//! Counters of limits in Redis, which the workers of all nodes share. No script is needed, because each worker writes only
//! its own fields of a hash.

use redis::{Pipeline, pipe};

use super::redis::RedisClient;

/// Time after which a worker that no longer shows that it counts for limits has no share of them.
const LIMIT_MEMBER_EXPIRY_MS: u64 = 15_000;

/// Fields of a counter of limits that a worker writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CounterWrite {
    pub name: String,
    pub fields: Vec<(String, String)>,
    /// Fields that are removed.
    pub stale: Vec<String>,
    pub ttl_ms: u64,
}

/// Generation of the limit counters, and the fields of one counter.
pub type CounterFields = (Option<String>, Vec<(String, String)>);

impl RedisClient {
    /// Writes fields of a counter, and returns the generation of the counters and all fields, at once. No script is needed,
    /// because each worker writes only its own fields. A request waits for this.
    pub async fn exchange_counter(&self, write: &CounterWrite) -> Option<CounterFields> {
        if !self.is_available() {
            return None;
        }
        let mut pipeline = pipe();
        pipeline.atomic().cmd("GET").arg(self.limits_key("generation"));
        self.append_write(write, &mut pipeline);
        pipeline.cmd("HGETALL").arg(self.counter_key(&write.name));
        self.query(&pipeline).await
    }

    /// Writes fields of counters. Returns false if Redis did not take them.
    pub async fn write_counters(&self, writes: &[CounterWrite]) -> bool {
        if !self.is_available() {
            return false;
        }
        let mut pipeline = pipe();
        for write in writes {
            self.append_write(write, &mut pipeline);
        }
        self.query::<()>(&pipeline).await.is_some()
    }

    /// Shows that a worker counts requests for limits. Returns the generation of the counters, which is a new one if there
    /// was none, and the number of such workers.
    pub async fn beat_limits(&self, member: u64, now_ms: u64) -> Option<(String, u64)> {
        if !self.is_available() {
            return None;
        }
        let (generation, members) = (self.limits_key("generation"), self.limits_key("members"));
        let mut pipeline = pipe();
        pipeline.cmd("SET").arg(&generation).arg(format!("{member:x}-{now_ms}")).arg("NX").ignore();
        pipeline.cmd("GET").arg(generation);
        pipeline.cmd("ZADD").arg(&members).arg(now_ms).arg(format!("{member:x}")).ignore();
        let expired = now_ms.saturating_sub(LIMIT_MEMBER_EXPIRY_MS);
        pipeline.cmd("ZREMRANGEBYSCORE").arg(&members).arg("-inf").arg(expired).ignore();
        pipeline.cmd("ZCARD").arg(members);
        self.query(&pipeline).await
    }

    fn append_write(&self, write: &CounterWrite, pipeline: &mut Pipeline) {
        let name = self.counter_key(&write.name);
        if !write.stale.is_empty() {
            pipeline.cmd("HDEL").arg(&name).arg(&write.stale).ignore();
        }
        let set = pipeline.cmd("HSET").arg(&name);
        for (field, value) in &write.fields {
            set.arg(field).arg(value);
        }
        set.ignore();
        pipeline.cmd("PEXPIRE").arg(name).arg(write.ttl_ms).ignore();
    }

    fn counter_key(&self, name: &str) -> String {
        self.limits_key(&format!("c:{name}"))
    }

    /// Returns the Redis key for a limit. All keys have one hash tag, so that they can be changed together.
    fn limits_key(&self, suffix: &str) -> String {
        self.prefixed_key(&format!("{{limits}}:{suffix}"))
    }
}
