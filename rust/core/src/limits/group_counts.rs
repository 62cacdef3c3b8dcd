//! Number of group values that have counters of their own: by limit, and by organisation, so that no organisation uses
//! up the counters of the others.

use std::collections::HashMap;

use sha2::{Digest, Sha256};

use super::{MAX_GROUPS, OTHER_GROUPS, rule::LimitRule};

/// Maximum number of group values with counters of their own. Clients may choose group values, and a budget's counters
/// stay for its period.
const MAX_ALL_GROUPS: usize = 500_000;
/// Number of counters that each organisation gets even if others have used up `MAX_ALL_GROUPS`.
const MIN_TENANT_GROUPS: usize = 1000;

/// Id of an organisation in the files of counters; 0 if it is not known.
pub type TenantId = u32;

/// Returns the id of an organisation, which is the same in all processes.
pub fn tenant_id(organisation: &str) -> TenantId {
    let digest: [u8; 32] = Sha256::digest(organisation.as_bytes()).into();
    digest.first_chunk().map_or(1, |bytes| TenantId::from_le_bytes(*bytes).max(1))
}

/// Numbers of counters by organisation.
#[derive(Debug, Default, Clone)]
pub struct TenantCounts {
    by_tenant: HashMap<TenantId, usize>,
    total: usize,
}

impl TenantCounts {
    pub fn add(&mut self, tenant: TenantId, count: usize) {
        *self.by_tenant.entry(tenant).or_default() += count;
        self.total += count;
    }

    pub fn remove(&mut self, tenant: TenantId) {
        if let Some(count) = self.by_tenant.get_mut(&tenant) {
            *count -= 1;
            self.total -= 1;
            if *count == 0 {
                self.by_tenant.remove(&tenant);
            }
        }
    }

    /// Returns true if an organisation gets no further counter. It may have at most as many as are left for all
    /// organisations, so that something is always left for others.
    pub fn is_full(&self, tenant: TenantId) -> bool {
        let own = self.by_tenant.get(&tenant).copied().unwrap_or_default();
        own >= MIN_TENANT_GROUPS && own >= MAX_ALL_GROUPS.saturating_sub(self.total)
    }
}

/// Numbers of the group values that one worker has in its memory.
#[derive(Default)]
pub struct GroupCounts {
    by_limit: HashMap<Box<str>, usize>,
    tenants: TenantCounts,
}

impl GroupCounts {
    /// Returns true if a new group of this limit gets no counter of its own.
    pub fn is_full(&self, rule: &LimitRule) -> bool {
        let count = self.by_limit.get(&rule.counter_id).copied().unwrap_or_default();
        count >= MAX_GROUPS || self.tenants.is_full(rule.tenant)
    }

    pub fn add(&mut self, rule: &LimitRule) {
        *self.by_limit.entry(rule.counter_id.clone()).or_default() += 1;
        self.tenants.add(rule.tenant, 1);
    }

    /// Removes a group. Groups that were not added, such as those of limits without groups, are ignored.
    pub fn remove(&mut self, counter_id: &str, group: &str, tenant: TenantId) {
        if group != OTHER_GROUPS
            && tenant != 0
            && let Some(count) = self.by_limit.get_mut(counter_id)
        {
            *count -= 1;
            self.tenants.remove(tenant);
            if *count == 0 {
                self.by_limit.remove(counter_id);
            }
        }
    }
}

#[cfg(test)]
impl TenantCounts {
    pub fn count(&self, tenant: TenantId) -> usize {
        self.by_tenant.get(&tenant).copied().unwrap_or_default()
    }

    /// Returns counts of an organisation that gets no further counter.
    pub fn full(tenant: TenantId) -> Self {
        let mut counts = Self::default();
        counts.add(tenant, MAX_ALL_GROUPS);
        counts
    }
}

#[cfg(test)]
impl GroupCounts {
    /// Makes the count of one limit look as if it had as many groups as it may have.
    pub fn fill_limit(&mut self, counter_id: &str) {
        self.by_limit.insert(counter_id.into(), MAX_GROUPS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_organisation_uses_up_the_counters_of_others() {
        let (greedy, other, later) = (tenant_id("greedy"), tenant_id("other"), tenant_id("later"));
        let mut counts = TenantCounts::default();
        let fill = |counts: &mut TenantCounts, tenant| {
            let mut added = 0;
            while !counts.is_full(tenant) {
                counts.add(tenant, 1);
                added += 1;
            }
            added
        };
        assert_eq!(fill(&mut counts, greedy), MAX_ALL_GROUPS / 2);
        assert_eq!(fill(&mut counts, other), MAX_ALL_GROUPS / 4);
        assert!(counts.total < MAX_ALL_GROUPS);
        // However many organisations there are, each gets some.
        for index in 0..20 {
            assert!(fill(&mut counts, tenant_id(&index.to_string())) >= MIN_TENANT_GROUPS);
        }
        assert_eq!(fill(&mut counts, later), MIN_TENANT_GROUPS);
        counts.remove(later);
        assert!(!counts.is_full(later) && counts.is_full(greedy));
    }
}
