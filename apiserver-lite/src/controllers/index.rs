//! Objects by something they have in common: pods by their node, dependents by their owner. Holds the store's own
//! objects, not copies.

use std::cmp::Ordering;
use std::collections::{BTreeSet, HashMap};

use super::feed::Change;
use crate::store::ObjectRef;

#[derive(Debug, Default)]
pub struct Index(HashMap<Box<str>, BTreeSet<Member>>);

/// An object in the order of its key, which it brings itself.
#[derive(Debug)]
struct Member(ObjectRef);

impl PartialEq for Member {
    fn eq(&self, other: &Self) -> bool {
        self.0.key == other.0.key
    }
}

impl Eq for Member {}

impl PartialOrd for Member {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Member {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.key.cmp(&other.0.key)
    }
}

#[expect(clippy::mutable_key_type, reason = "an object's key never changes; what may change is its cached encoding")]
impl Index {
    /// Takes in a change; `groups` are those that a state of the object belongs to.
    pub fn observe<'a, I: IntoIterator<Item = &'a str>>(
        &mut self,
        change: Change<'a>,
        groups: impl Fn(&'a ObjectRef) -> I,
    ) {
        let before = if change.deleted() { Some(change.object) } else { None };
        for old in before.into_iter().chain(change.previous) {
            for group in groups(old) {
                self.remove(group, old);
            }
        }
        if !change.deleted() {
            for group in groups(change.object) {
                let group = match self.0.get_mut(group) {
                    Some(group) => group,
                    None => self.0.entry(group.into()).or_default(),
                };
                group.replace(Member(change.object.clone()));
            }
        }
    }

    fn remove(&mut self, group: &str, object: &ObjectRef) {
        if let Some(members) = self.0.get_mut(group) {
            members.remove(&Member(object.clone()));
            if members.is_empty() {
                self.0.remove(group);
            }
        }
    }

    pub fn get(&self, group: &str) -> impl Iterator<Item = &ObjectRef> + Clone {
        self.0.get(group).into_iter().flatten().map(|member| &member.0)
    }

    /// What work on one key looks at: some groups, without the objects that have nothing to do with it.
    pub fn part(&self, groups: &[&str], fits: impl Fn(&ObjectRef) -> bool) -> Self {
        let part = |group: &&str| -> (Box<str>, BTreeSet<Member>) {
            let members = self.get(group).filter(|object| fits(object)).cloned().map(Member);
            ((*group).into(), members.collect())
        };
        Index(groups.iter().map(part).collect())
    }

    pub fn contains(&self, group: &str) -> bool {
        self.0.contains_key(group)
    }
}

/// The node of a pod, as a group.
pub fn by_node(pod: &ObjectRef) -> Option<&str> {
    Some(pod.field("spec.nodeName")).filter(|n| !n.is_empty())
}

/// The owners of an object, as groups.
pub fn by_owner(object: &ObjectRef) -> impl Iterator<Item = &str> {
    object.keys.owners.iter().map(|uid| &**uid)
}
