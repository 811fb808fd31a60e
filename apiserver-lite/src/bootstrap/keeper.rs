//! Keeps the server's own namespaces, service, endpoints and authentication config map as they should be: what is gone is
//! made again, and what the server says of itself is put right.
//!
//! At a start [`step`] does so before anything is served; from then on the keeper looks a while after each change of one
//! of them, and sleeps where nothing changes. Whoever insists on something else is not answered at once: upstream
//! looks at all of it every ten seconds too. A server has its store to itself, so the endpoints are its alone.
//!
//! Follows `pkg/controlplane/controller/kubernetesservice`, `systemnamespaces` and `clusterauthenticationtrust`.

use std::sync::Arc;
use std::time::Duration;

use proto::time::Timestamp;
use serde_json::Value;

use super::reconcile::Step;
use super::{Authorities, Kept, Place, Wanted, create_missing, namespaces, system, trust};
use crate::config::Config;
use crate::controllers::{Change, Controller, Queue, follow};
use crate::server::ApiServer;
use crate::status::Result;
use crate::store::ResourceId;

/// Between a change of an object and the look at it.
const WAIT: Duration = Duration::from_secs(10);

const NAMESPACES: Place = ("", "v1", "namespaces");
const SERVICES: Place = ("", "v1", "services");
const ENDPOINTS: Place = ("", "v1", "endpoints");
const SLICES: Place = ("discovery.k8s.io", "v1", "endpointslices");
const MAPS: Place = ("", "v1", "configmaps");

/// Namespaces come first, as the others are in them.
pub(super) fn wanted(config: &Config, authorities: &Authorities) -> Vec<Wanted> {
    let mut wanted: Vec<Wanted> = namespaces::system().map(|n| (NAMESPACES, String::new(), n)).collect();
    wanted.push((MAPS, "kube-system".into(), system::extension_authentication(config, authorities)));
    wanted.push((SERVICES, "default".into(), system::service(config)));
    // Where no network is, nobody else can come, and who could stays told.
    if let Some(address) = config.reachable() {
        let (slice, endpoints) = system::endpoints(address, config.args.secure_port);
        wanted.push((SLICES, "default".into(), slice));
        wanted.push((ENDPOINTS, "default".into(), endpoints));
    }
    wanted
}

/// Compares an object with what it should be; all but endpoints and the authentication config map stay as they are found.
/// So does the service, as upstream leaves it: clients are sent where its endpoints say.
pub(super) fn step(plural: &str, wanted: &Value, have: &Value) -> Step {
    let mut value = have.clone();
    match plural {
        // The type of a slice cannot be changed.
        "endpointslices" if wanted["addressType"] != have["addressType"] => return Step::MakeAnew,
        "endpointslices" => {
            value["metadata"]["labels"] = wanted["metadata"]["labels"].clone();
            ["endpoints", "ports"].into_iter().for_each(|part| value[part] = wanted[part].clone());
        }
        "endpoints" => {
            value["metadata"]["labels"] = wanted["metadata"]["labels"].clone();
            value["subsets"] = wanted["subsets"].clone();
        }
        "configmaps" if wanted["metadata"]["name"] == system::AUTHENTICATION => {
            value["data"] = trust::combined(&have["data"], &wanted["data"], Timestamp::now().seconds);
        }
        _ => return Step::Keep,
    }
    if value == *have { Step::Keep } else { Step::Write(value) }
}

/// Follows the objects until the runtime ends.
pub(super) async fn run(server: Arc<ApiServer>, wanted: Kept) {
    follow(server.store.clone(), move || Keeper::new(server.clone(), wanted.clone())).await;
}

struct Keeper {
    server: Arc<ApiServer>,
    /// May come to say something else, in the same order.
    wanted: Kept,
    /// What is gone already is in no event, so everything is looked at once.
    has_begun: bool,
}

impl Keeper {
    fn new(server: Arc<ApiServer>, wanted: Kept) -> Self {
        Keeper { server, wanted, has_begun: false }
    }
}

/// In the order of what is watched.
const WATCHED: [Place; 5] = [NAMESPACES, SERVICES, ENDPOINTS, SLICES, MAPS];

impl Controller for Keeper {
    const NAME: &'static str = "bootstrap-controller";
    /// Which of the wanted objects.
    type Key = usize;

    fn watched(&self) -> Vec<ResourceId> {
        let name =
            |(group, _, plural): Place| if group.is_empty() { plural.into() } else { format!("{plural}.{group}") };
        WATCHED.iter().map(|place| name(*place).as_str().into()).collect()
    }

    fn observe(&mut self, change: Change<'_>, queue: &mut Queue<usize>) {
        if !std::mem::replace(&mut self.has_begun, true) {
            (0..self.wanted.0.load().len()).for_each(|at| queue.add(at));
        }
        let key = &change.object.key;
        let concerns = |(place, namespace, object): &Wanted| {
            *place == WATCHED[change.resource]
                && *namespace == *key.namespace
                && object["metadata"]["name"] == *key.name
        };
        if let Some(at) = self.wanted.0.load().iter().position(concerns) {
            queue.add_after(at, WAIT);
        }
    }

    async fn sync(&mut self, at: &usize) -> Result<Option<Duration>> {
        if let Some((place, namespace, object)) = self.wanted.0.load_full().get(*at) {
            create_missing(&self.server, *place, namespace, object).await?;
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use serde_json::json;

    use super::*;
    use crate::client::Client;
    use crate::serve::testing;
    use crate::store::EventKind;
    use crate::write::DeleteOptions;

    fn endpoints(address: &str, port: u16) -> (Value, Value) {
        system::endpoints(address.parse::<IpAddr>().expect("an address"), port)
    }

    /// A server that had another address or port before sent its clients there for good.
    #[test]
    fn endpoints_follow_the_servers_address_and_port() {
        let ((old_slice, old), (slice, new)) = (endpoints("192.0.2.1", 6443), endpoints("192.0.2.2", 7443));
        for (plural, old, new) in [("endpoints", &old, &new), ("endpointslices", &old_slice, &slice)] {
            let mut have = old.clone();
            have["metadata"]["labels"]["more"] = "x".into();
            have["metadata"]["uid"] = "u".into();
            let Step::Write(value) = step(plural, new, &have) else { panic!("{plural} stay") };
            let mut expected = new.clone();
            expected["metadata"]["uid"] = "u".into();
            assert_eq!(value, expected);
            assert_eq!(step(plural, new, &value), Step::Keep);
        }
        let (other_family, _) = endpoints("2001:db8::1", 7443);
        assert_eq!(step("endpointslices", &other_family, &slice), Step::MakeAnew);
    }

    #[test]
    fn of_config_maps_only_that_of_authentication_is_ours() {
        let map = |name: &str, data: Value| json!({"metadata": {"name": name}, "data": data});
        let key = "requestheader-allowed-names";
        let authority =
            rcgen::KeyPair::generate().and_then(|key| rcgen::CertificateParams::default().self_signed(&key));
        let authority = authority.expect("signed").pem();
        let ours = json!({"requestheader-client-ca-file": authority, key: r#"["a"]"#});
        let theirs = map(system::AUTHENTICATION, json!({key: r#"["b"]"#}));
        let Step::Write(value) = step("configmaps", &map(system::AUTHENTICATION, ours.clone()), &theirs) else {
            panic!("it stays");
        };
        assert_eq!(value["data"][key], r#"["b","a"]"#);
        let info = map("cluster-info", json!({"kubeconfig": "changed"}));
        assert_eq!(step("configmaps", &map("cluster-info", ours), &info), Step::Keep);
    }

    #[test]
    fn namespaces_and_the_service_stay_as_they_are_found() {
        let service = |port: u16| json!({"spec": {"ports": [{"targetPort": port}]}});
        for plural in ["services", "namespaces"] {
            assert_eq!(step(plural, &service(1), &service(2)), Step::Keep);
        }
    }

    #[tokio::test]
    async fn what_is_deleted_or_changed_comes_back() {
        const SLICE: &str = "endpointslices.discovery.k8s.io";
        let server = testing::server().await;
        let client = Client::new(server.clone(), "system:admin", "test");
        let (slice, points) = endpoints("192.0.2.1", 6443);
        let own = json!({"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": "own"}});
        let wanted: Vec<Wanted> = vec![
            (NAMESPACES, String::new(), own),
            (SLICES, "default".into(), slice),
            (ENDPOINTS, "default".into(), points.clone()),
        ];
        let mut keeper = Keeper::new(server.clone(), wanted.into());
        let mut look = async || {
            for at in 0..3 {
                keeper.sync(&at).await.expect("nothing refuses it");
            }
        };
        let find = |resource: &str, namespace: &str, name: &str| client.get(resource, namespace, name);
        look().await;
        assert!(find("namespaces", "", "own").is_some() && find(SLICE, "default", "kubernetes").is_some());
        let made = find("endpoints", "default", "kubernetes").expect("it is made");
        look().await;
        let same = find("endpoints", "default", "kubernetes").expect("it is there");
        assert_eq!(same.revision, made.revision, "what is right is not written");
        client.delete(SLICE, "default", "kubernetes", &DeleteOptions::default()).await.expect("deleted");
        let (_, others) = endpoints("192.0.2.2", 7443);
        let changed = client.update("endpoints", "default", "kubernetes", |value| {
            value["subsets"] = others["subsets"].clone();
            Ok(())
        });
        changed.await.expect("changed");
        look().await;
        assert!(find(SLICE, "default", "kubernetes").is_some());
        let again = find("endpoints", "default", "kubernetes").expect("it is there").value();
        assert_eq!(again["subsets"], points["subsets"]);
    }

    #[tokio::test]
    async fn everything_is_looked_at_once_and_then_a_while_after_a_change() {
        let server = testing::server().await;
        let namespace = |name: &str| {
            let object = json!({"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": name}});
            (NAMESPACES, String::new(), object)
        };
        let mut keeper = Keeper::new(server.clone(), vec![namespace("gone"), namespace("default")].into());
        let found = server.store.get(&"namespaces".into(), "", "default").expect("it is there");
        let mut queue = Queue::default();
        let now = tokio::time::Instant::now();
        let mut tell = |queue: &mut Queue<usize>, resource: usize| {
            keeper.observe(Change { resource, kind: EventKind::Added, object: &found, previous: None }, queue);
        };
        tell(&mut queue, 1);
        assert_eq!([queue.pop(now), queue.pop(now), queue.pop(now)], [Some(0), Some(1), None]);
        [0, 1].iter().for_each(|at| queue.done(at));
        tell(&mut queue, 1);
        assert_eq!(queue.next_due(), None, "a service of that name is another thing");
        tell(&mut queue, 0);
        assert_eq!(queue.pop(now), None);
        assert_eq!(queue.pop(now + 2 * WAIT), Some(1));
    }
}
