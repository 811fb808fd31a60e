//! From one version of a deployment to the next, and from one size to another.

use super::{Deployments, Set, Which, Work};
use crate::controllers::pods::{PodDigest, is_terminal};
use crate::status::Result;

/// How many pods the newest replica set may have now.
pub(super) fn size_of_new(work: &Work) -> i64 {
    let (have, wanted) = (work.new.as_ref().map_or(0, Set::replicas), work.replicas());
    if !work.rolling() {
        return wanted;
    }
    let room = wanted + work.slack().0 - work.total();
    if room <= 0 { have } else { have + room.min(wanted - have).max(0) }
}

impl Deployments {
    /// One step of a rolling update: more new pods, or fewer old ones.
    pub(super) async fn roll(&self, work: &mut Work) -> Result<()> {
        self.number(work, true).await?;
        let Some(new) = work.new.clone() else { return Ok(()) };
        let wanted = work.replicas();
        if new.replicas() != wanted {
            let size = if new.replicas() > wanted { wanted } else { size_of_new(work) };
            if self.resize(work, Which::New, size).await? {
                return Ok(());
            }
        }
        if !self.shrink_old(work).await? && super::status::complete(work) {
            self.clean_up(work).await?;
        }
        Ok(())
    }

    /// Takes old pods away: first those that do not work, then as many as may be unavailable.
    async fn shrink_old(&self, work: &mut Work) -> Result<bool> {
        let old_pods: i64 = work.old.iter().map(Set::replicas).sum();
        let Some(new) = work.new.clone().filter(|_| old_pods > 0) else { return Ok(false) };
        let minimum = work.replicas() - work.slack().1;
        let missing = new.replicas() - new.status("availableReplicas");
        let mut budget = work.total() - minimum - missing;
        if budget <= 0 {
            return Ok(false);
        }
        let mut changed = false;
        for at in 0..work.old.len() {
            let set = &work.old[at];
            let unhealthy = set.replicas() - set.status("availableReplicas");
            let less = unhealthy.min(budget).min(set.replicas());
            if less > 0 {
                let size = set.replicas() - less;
                changed |= self.resize(work, Which::Old(at), size).await?;
                budget -= less;
            }
        }
        let available: i64 = work.all().map(|s| s.status("availableReplicas")).sum();
        let mut budget = available - minimum;
        for at in 0..work.old.len() {
            let less = work.old[at].replicas().min(budget);
            if less > 0 {
                let size = work.old[at].replicas() - less;
                changed |= self.resize(work, Which::Old(at), size).await?;
                budget -= less;
            }
        }
        Ok(changed)
    }

    /// Replaces everything at once: nothing new before the last old pod is gone.
    pub(super) async fn recreate(&self, work: &mut Work) -> Result<()> {
        self.number(work, false).await?;
        let mut changed = false;
        for at in 0..work.old.len() {
            if work.old[at].replicas() > 0 {
                changed |= self.resize(work, Which::Old(at), 0).await?;
            }
        }
        if changed || self.old_pods_run(work) {
            return Ok(());
        }
        if work.new.is_none() {
            self.number(work, true).await?;
        }
        let wanted = work.replicas();
        self.resize(work, Which::New, wanted).await?;
        if super::status::complete(work) {
            self.clean_up(work).await?;
        }
        Ok(())
    }

    fn old_pods_run(&self, work: &Work) -> bool {
        if work.old.is_empty() {
            return false;
        }
        let pods = self.client.store().snapshot(&"pods".into());
        let mut pods = pods.range(Some(&work.object.key.namespace), None).filter(|p| !is_terminal(p));
        pods.any(|pod| {
            let owner = PodDigest::of(pod).controller.as_ref().map(|c| c.uid.clone());
            owner.is_some_and(|uid| work.old.iter().any(|s| s.object.keys.uid == uid))
        })
    }

    /// Follows a change of size that is no rollout: the only active replica set takes it, several share it by their size.
    pub(super) async fn scale(&self, work: &mut Work) -> Result<()> {
        let wanted = work.replicas();
        let places = || work.new.iter().map(|_| Which::New).chain((0..work.old.len()).map(Which::Old));
        let size = |work: &Work, which: Which| match which {
            Which::New => work.new.as_ref().map_or(0, Set::replicas),
            Which::Old(at) => work.old[at].replicas(),
        };
        let active: Vec<Which> = places().filter(|w| size(work, *w) > 0).collect();
        let only = match active.as_slice() {
            [] => work.new.as_ref().map(|_| Which::New).or(work.old.len().checked_sub(1).map(Which::Old)),
            [only] => Some(*only),
            _ => None,
        };
        if let Some(only) = only {
            self.resize(work, only, wanted).await?;
            return Ok(());
        }
        let saturated = work.new.as_ref().is_some_and(|new| {
            new.replicas() == wanted
                && new.annotation(super::DESIRED) == wanted.to_string()
                && new.status("availableReplicas") == wanted
        });
        if saturated {
            for at in 0..work.old.len() {
                self.resize(work, Which::Old(at), 0).await?;
            }
            return Ok(());
        }
        if !work.rolling() {
            return Ok(());
        }
        let allowed = if wanted > 0 { wanted + work.slack().0 } else { 0 };
        let total = work.total();
        let mut left = allowed - total;
        // The largest first, so that what rounding leaves goes to it; newer ones first when growing.
        let mut order = active;
        order.sort_by_key(|w| std::cmp::Reverse(size(work, *w)));
        let mut sizes: Vec<(Which, i64)> = Vec::new();
        for which in order {
            let (have, maximum) = match which {
                Which::New => (size(work, which), work.new.as_ref().map(|s| s.annotation(super::MAXIMUM).to_owned())),
                Which::Old(at) => (size(work, which), Some(work.old[at].annotation(super::MAXIMUM).to_owned())),
            };
            let before: i64 = maximum.and_then(|t| t.parse().ok()).filter(|m| *m > 0).unwrap_or(total).max(1);
            let share = ((have as f64 * allowed as f64) / before as f64).round() as i64 - have;
            let share = if left > 0 { share.clamp(0, left) } else { share.clamp(left, 0) };
            sizes.push((which, have + share));
            left -= share;
        }
        if let Some((_, first)) = sizes.first_mut() {
            *first = (*first + left).max(0);
        }
        for (which, size) in sizes {
            self.resize(work, which, size).await?;
        }
        Ok(())
    }
}
