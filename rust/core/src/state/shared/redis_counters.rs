//! Counters of limits in Redis, which the workers of all nodes share. No script is needed, because each worker writes
//! only its own fields of a hash.

use redis::{Pipeline, pipe};

use super::redis::{QueryError, RedisClient};

/// Change that a worker makes to one counter of limits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CounterWrite {
    pub name: String,
    pub fields: Vec<(String, String)>,
    /// Names of the fields that are removed.
    pub removed_fields: Vec<String>,
    pub ttl_ms: u64,
}

/// Fields of a hash in Redis.
pub type HashFields = Vec<(String, String)>;

/// Generation of the limit counters, the workers that share them, and the fields of one counter. The generation is an
/// id that changes if Redis loses the counters.
pub type CounterReply = (Option<String>, HashFields, HashFields);

impl RedisClient {
    /// Writes fields of a counter. In the same transaction, reads the generation of the counters, the workers and all
    /// fields of the counter. A client's request waits until this returns.
    pub async fn exchange_counter(&self, write: &CounterWrite) -> Option<CounterReply> {
        if !self.is_available() {
            return None;
        }
        let mut pipeline = pipe();
        pipeline.atomic().cmd("GET").arg(self.limits_key("generation"));
        pipeline.cmd("HGETALL").arg(self.limits_key("workers"));
        self.append_write(write, &mut pipeline);
        pipeline.cmd("HGETALL").arg(self.counter_key(&write.name));
        self.query(&pipeline).await
    }

    /// Writes fields of counters. Returns false if Redis did not confirm them.
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

    /// Announces to the other workers that this one reaches Redis. Returns the generation of the counters and all
    /// workers. The generation is `new_generation` if there was none.
    ///
    /// # Errors
    /// If Redis rejects the commands or does not reply.
    pub async fn announce_worker(
        &self,
        name: &str,
        presence: &str,
        new_generation: &str,
    ) -> Result<(String, HashFields), QueryError> {
        if !self.is_available() {
            return Err(QueryError::Rejected);
        }
        let (generation, workers) = (self.limits_key("generation"), self.limits_key("workers"));
        let mut pipeline = pipe();
        pipeline.atomic().cmd("SET").arg(&generation).arg(new_generation).arg("NX").ignore();
        pipeline.cmd("GET").arg(generation);
        pipeline.cmd("HSET").arg(&workers).arg(name).arg(presence).ignore();
        pipeline.cmd("HGETALL").arg(workers);
        self.try_query(&pipeline).await
    }

    /// Removes workers that no longer share the limits.
    pub async fn remove_workers(&self, names: &[String]) {
        if self.is_available() && !names.is_empty() {
            let mut pipeline = pipe();
            pipeline.cmd("HDEL").arg(self.limits_key("workers")).arg(names).ignore();
            self.query::<()>(&pipeline).await;
        }
    }

    fn append_write(&self, write: &CounterWrite, pipeline: &mut Pipeline) {
        let name = self.counter_key(&write.name);
        if !write.removed_fields.is_empty() {
            pipeline.cmd("HDEL").arg(&name).arg(&write.removed_fields).ignore();
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

    /// Returns the Redis key for a limit. All keys have one hash tag, so that one transaction can change several of
    /// them.
    fn limits_key(&self, suffix: &str) -> String {
        self.prefixed_key(&format!("{{limits}}:{suffix}"))
    }
}
