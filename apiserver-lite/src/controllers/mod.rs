//! Controllers: clients of the same store that bring what is there to what should be there.
//!
//! Each waits on the store's events and works when there is something to do; switched by `--controllers`.

pub mod events;
pub mod feed;
mod namespace_defaults;
pub mod pods;
mod queue;
mod runner;
pub mod volumes;

use std::sync::Arc;

use crate::client::Client;
use crate::config::Controllers;
use crate::server::ApiServer;

/// Starts the controllers that are switched on, and the scheduler. They end with the runtime.
pub fn start(server: &Arc<ApiServer>, enabled: &Controllers, scheduler: bool, authority: &str) {
    let account = enabled.enabled("serviceaccount-controller");
    let root_ca = enabled.enabled("root-ca-certificate-publisher-controller");
    if account || root_ca {
        let defaults = namespace_defaults::Defaults { account, root_ca: root_ca.then(|| authority.to_owned()) };
        tokio::spawn(namespace_defaults::run(server.clone(), defaults));
    }
    if scheduler {
        let client = Client::new(server.clone(), "system:kube-scheduler", "kube-scheduler");
        tokio::spawn(crate::scheduler::run(client.clone(), events::Recorder::start(client)));
    }
}
