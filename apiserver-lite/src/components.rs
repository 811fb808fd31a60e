//! Whether the parts of the control plane work: what `/api/v1/componentstatuses` tells.
//!
//! Each part is asked when somebody wants to know, and at no other time. The controllers and the scheduler of this process
//! answer from the loops in which they work ([`Pulse`]), so that a loop that hangs is told from one that has nothing to
//! do. Where they do not run here they may run elsewhere, and are asked where upstream asks: on this machine, at their
//! standard ports. Followed: upstream's `pkg/registry/core/componentstatus`.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::{Notify, watch};

use crate::outgoing::{self, Client, Dialer, Trust};
use crate::store::Store;

/// How long an answer is waited for, as upstream's `probeTimeOut`.
const PATIENCE: Duration = Duration::from_secs(20);
/// Where kube-controller-manager and kube-scheduler tell how they are.
const CONTROLLERS_PORT: u16 = 10257;
const SCHEDULER_PORT: u16 = 10259;

/// A question to a loop that only the loop itself answers.
pub struct Pulse {
    asked: Notify,
    answers: watch::Sender<u64>,
}

impl Default for Pulse {
    fn default() -> Self {
        Pulse { asked: Notify::new(), answers: watch::Sender::new(0) }
    }
}

impl Pulse {
    /// Waits to be asked, and answers. Cancel safe; who does nothing else calls it again and again.
    pub async fn answer(&self) {
        self.asked.notified().await;
        self.answers.send_modify(|count| *count = count.wrapping_add(1));
    }

    /// Whether the loop answers in time.
    async fn ask(&self) -> bool {
        let mut answers = self.answers.subscribe();
        self.asked.notify_one();
        matches!(tokio::time::timeout(PATIENCE, answers.changed()).await, Ok(Ok(())))
    }
}

/// The parts that can be asked.
#[derive(Default)]
pub struct Components {
    controllers: OnceLock<Arc<Pulse>>,
    scheduler: OnceLock<Arc<Pulse>>,
}

/// How a part is: well, and what it says, or what went wrong with asking.
struct Health {
    well: bool,
    message: String,
    error: String,
}

impl Health {
    fn well() -> Self {
        Health { well: true, message: "ok".into(), error: String::new() }
    }

    fn ill(message: String) -> Self {
        Health { well: false, message, error: String::new() }
    }
}

/// Names of the parts, in order.
pub const NAMES: [&str; 3] = ["controller-manager", "etcd-0", "scheduler"];

impl Components {
    /// The controllers run in this process: their side of the question.
    pub fn with_controllers(&self) -> Arc<Pulse> {
        self.controllers.get_or_init(Arc::default).clone()
    }

    /// The scheduler runs in this process: its side of the question.
    pub fn with_scheduler(&self) -> Arc<Pulse> {
        self.scheduler.get_or_init(Arc::default).clone()
    }

    /// A `ComponentStatus` of one of [`NAMES`], asked now; None for another name.
    pub async fn status(&self, store: &Store, name: &str) -> Option<Value> {
        let health = match name {
            "controller-manager" => of_loop(self.controllers.get(), CONTROLLERS_PORT).await,
            "scheduler" => of_loop(self.scheduler.get(), SCHEDULER_PORT).await,
            "etcd-0" => of_store(store).await,
            _ => return None,
        };
        let mut condition = json!({"type": "Healthy", "status": if health.well { "True" } else { "False" }});
        for (key, text) in [("message", health.message), ("error", health.error)] {
            if !text.is_empty() {
                condition[key] = text.into();
            }
        }
        Some(json!({"kind": "ComponentStatus", "apiVersion": "v1", "metadata": {"name": name},
            "conditions": [condition]}))
    }
}

async fn of_loop(pulse: Option<&Arc<Pulse>>, port: u16) -> Health {
    match pulse {
        Some(pulse) if pulse.ask().await => Health::well(),
        Some(_) => Health::ill("context deadline exceeded".into()),
        None => of_port(port).await,
    }
}

/// What another process says of itself. Its certificate is its own, so nobody can check it, as upstream.
async fn of_port(port: u16) -> Health {
    let host = "127.0.0.1".to_owned();
    let tls = match outgoing::tls(Trust::Anything, None) {
        Ok(tls) => Some(tls),
        Err(error) => return Health { error: error.to_string(), ..Health::ill(String::new()) },
    };
    let client = Client::new(Dialer { name: host.clone(), host, port, tls }, "/healthz".into(), None);
    let answer =
        client.send(http::Method::GET, "/healthz", http::HeaderMap::new(), bytes::Bytes::new(), PATIENCE).await;
    match answer {
        Ok(answer) if (200..300).contains(&answer.code) => {
            Health { well: true, message: String::from_utf8_lossy(&answer.body).into_owned(), error: String::new() }
        }
        Ok(answer) => Health::ill(format!("HTTP probe failed with statuscode: {}", answer.code)),
        Err(error) => Health::ill(format!("Get {}: {error}", crate::status::quote(&client.url()))),
    }
}

/// Whether the store answers and takes writes. It answers from memory, unless it hangs.
async fn of_store(store: &Store) -> Health {
    let asked = store.clone();
    let answer = tokio::time::timeout(PATIENCE, tokio::task::spawn_blocking(move || asked.revision())).await;
    let error = match answer {
        Ok(Ok(_)) if store.is_healthy() => return Health::well(),
        Ok(_) => "the store takes no writes",
        Err(_) => "context deadline exceeded",
    };
    Health { error: error.into(), ..Health::ill(String::new()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn condition(components: &Components, store: &Store, name: &str) -> Value {
        components.status(store, name).await.expect("a part")["conditions"][0].take()
    }

    #[tokio::test]
    async fn loops_answer_for_themselves_and_one_that_hangs_does_not() {
        let (components, store) = (Components::default(), Store::open(None).expect("memory opens"));
        let well = json!({"type": "Healthy", "status": "True", "message": "ok"});
        let pulse = components.with_scheduler();
        let works = tokio::spawn(async move {
            loop {
                pulse.answer().await;
            }
        });
        for _ in 0..2 {
            assert_eq!(condition(&components, &store, "scheduler").await, well);
        }
        assert_eq!(condition(&components, &store, "etcd-0").await, well);
        assert!(components.status(&store, "etcd-1").await.is_none());
        works.abort();
        let _ = works.await;
        tokio::time::pause();
        let ill = json!({"type": "Healthy", "status": "False", "message": "context deadline exceeded"});
        assert_eq!(condition(&components, &store, "scheduler").await, ill);
    }

    #[tokio::test]
    async fn who_runs_elsewhere_is_asked_at_its_port() {
        let free = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
        let port = free.local_addr().expect("its address").port();
        drop(free);
        let health = of_port(port).await;
        let why = format!("dial tcp 127.0.0.1:{port}: connect: connection refused");
        assert_eq!((health.well, health.message), (false, format!("Get \"https://127.0.0.1:{port}/healthz\": {why}")));
    }
}
