//! Controllers: clients of the same store that bring what is there to what should be there.
//!
//! Each waits on the store's events and works when there is something to do; switched by `--controllers`.

mod namespace_defaults;

use std::sync::Arc;

use crate::config::Controllers;
use crate::server::ApiServer;

/// Starts the controllers that are switched on. They end with the runtime.
pub fn start(server: &Arc<ApiServer>, enabled: &Controllers, authority: &str) {
    let account = enabled.enabled("serviceaccount-controller");
    let root_ca = enabled.enabled("root-ca-certificate-publisher-controller");
    if account || root_ca {
        let defaults = namespace_defaults::Defaults { account, root_ca: root_ca.then(|| authority.to_owned()) };
        tokio::spawn(namespace_defaults::run(server.clone(), defaults));
    }
}
