//! Permits for costly work, shared fairly: one workspace can hold only some of them, so that others need not wait for
//! all of its work.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// A bounded number of permits, of which each workspace can hold a smaller number.
pub struct FairPermits {
    total: Arc<Semaphore>,
    max_per_workspace: usize,
    workspaces: Mutex<HashMap<Box<str>, Arc<Semaphore>>>,
}

/// Permits that are held. They are free again when this is dropped.
pub struct FairPermit {
    /// Fields are dropped in this order, so that the next request of the workspace finds a free permit in the total.
    _total: OwnedSemaphorePermit,
    _share: OwnedSemaphorePermit,
}

impl FairPermits {
    pub fn new(total: usize, max_per_workspace: usize) -> Self {
        Self { total: Arc::new(Semaphore::new(total)), max_per_workspace, workspaces: Mutex::default() }
    }

    /// Waits for one permit. Returns `None` only if a semaphore is closed, which never happens.
    pub async fn acquire(&self, workspace: Option<&str>) -> Option<FairPermit> {
        let share = self.share(workspace).acquire_owned().await.ok()?;
        let total = Arc::clone(&self.total).acquire_owned().await.ok()?;
        Some(FairPermit { _total: total, _share: share })
    }

    /// Takes permits. Returns `None` if too few are free, or if the workspace would exceed its share.
    pub fn try_acquire_many(&self, workspace: Option<&str>, count: u32) -> Option<FairPermit> {
        let share = self.share(workspace).try_acquire_many_owned(count).ok()?;
        let total = Arc::clone(&self.total).try_acquire_many_owned(count).ok()?;
        Some(FairPermit { _total: total, _share: share })
    }

    /// Returns the semaphore of a workspace. Requests without a workspace share one.
    fn share(&self, workspace: Option<&str>) -> Arc<Semaphore> {
        let mut workspaces = self.workspaces.lock().unwrap_or_else(PoisonError::into_inner);
        // Removes entries that no request holds or waits for, so that the map does not grow with finished work.
        workspaces.retain(|_, share| Arc::strong_count(share) > 1);
        let make = || Arc::new(Semaphore::new(self.max_per_workspace));
        Arc::clone(workspaces.entry(workspace.unwrap_or_default().into()).or_insert_with(make))
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn one_workspace_leaves_permits_to_others() {
        let permits = FairPermits::new(2, 1);
        let permit = permits.acquire(Some("a")).await.unwrap();
        assert!(permits.try_acquire_many(Some("a"), 1).is_none());
        let mut waiting = Box::pin(permits.acquire(Some("a")));
        assert!(waiting.as_mut().now_or_never().is_none());
        let other = permits.acquire(Some("b")).await.unwrap();
        assert!(permits.try_acquire_many(None, 1).is_none(), "all are taken");
        drop(permit);
        assert!(waiting.await.is_some());
        drop(other);
        assert!(permits.try_acquire_many(None, 1).is_some());
        assert_eq!(permits.workspaces.lock().unwrap().len(), 1, "those of before are forgotten");
    }
}
