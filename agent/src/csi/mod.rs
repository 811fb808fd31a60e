//! Storage drivers (CSI) as this node uses them: which are here, how they are called, and where their volumes lie.
//!
//! [`Drivers`] is what the plugin registry fills and volumes ask. [`volumes::Volumes`] stages and publishes a volume for
//! a pod, and takes both back. What is needed for taking back lies on disk next to the volume (`vol_data.json`) before a
//! driver is called, in the kubelet's places and words, so that an agent that was killed, or the kubelet, can go on.
//!
//! Followed: `pkg/volume/csi` (`csi_attacher.go`, `csi_mounter.go`, `csi_block.go`), the CSI specification 1.x.

mod attach;
mod block;
mod client;
mod context;
mod data;
mod expand;
pub mod limit;
mod sizes;
mod teardown;
pub mod usage;
pub mod volumes;
mod wanted;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{Notify, watch};

pub use attach::Reported;
pub use block::make_link;
pub use client::{CsiError, Driver};
pub use data::make_private;
pub use wanted::Wanted;

/// The drivers that are registered on this node, by name.
#[derive(Default)]
pub struct Drivers {
    sockets: Mutex<BTreeMap<String, PathBuf>>,
    /// Who is told, by driver, that the node can have no further volume.
    full: Mutex<BTreeMap<String, Arc<Notify>>>,
    /// Counts registrations.
    arrivals: watch::Sender<u64>,
    /// How full the volumes of pods are.
    pub usages: usage::Usages,
}

impl Drivers {
    /// A driver that registered, and the socket on which it serves.
    pub fn insert(&self, name: &str, socket: PathBuf) -> Option<PathBuf> {
        let before = self.sockets.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned(), socket);
        self.arrivals.send_modify(|n| *n = n.wrapping_add(1));
        before
    }

    /// A driver that took its registration back.
    pub fn remove(&self, name: &str) {
        self.sockets.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
        self.full.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
    }

    /// Is notified when a driver's attacher found the node full.
    pub fn full(&self, name: &str) -> Arc<Notify> {
        let mut full = self.full.lock().unwrap_or_else(PoisonError::into_inner);
        full.entry(name.to_owned()).or_default().clone()
    }

    /// # Errors
    /// In the kubelet's words, when there is no such driver.
    pub fn get(&self, name: &str) -> Result<Driver, CsiError> {
        let sockets = self.sockets.lock().unwrap_or_else(PoisonError::into_inner);
        let socket = sockets.get(name).cloned().ok_or_else(|| CsiError::Missing(name.to_owned()))?;
        Ok(Driver { name: name.to_owned(), socket })
    }

    /// Tells of drivers that register.
    pub fn arrivals(&self) -> watch::Receiver<u64> {
        self.arrivals.subscribe()
    }
}

#[cfg(test)]
mod tests;
