//! Jobs against a server in memory.

use std::sync::Arc;

use proto::time::Timestamp;
use serde_json::json;

use super::super::feed::Feed;
use super::*;
use crate::server::ApiServer;

struct Trial {
    client: Client,
    jobs: Jobs,
    feed: Feed,
    queue: Queue<Key>,
}

impl Trial {
    /// A job with one pod at a time, and one look at it.
    async fn begin(server: Arc<ApiServer>, mut spec: Value) -> Self {
        let client = Client::new(server.clone(), "system:kube-controller-manager", "test");
        let jobs = Jobs::new(client.clone(), Recorder::start(client.clone()));
        let feed = Feed::open(&server.store, &jobs.watched());
        if spec["template"].is_null() {
            let containers = json!([{"name": "c", "image": "i"}]);
            spec["template"] = json!({"spec": {"restartPolicy": "Never", "containers": containers}});
        }
        let job = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"}, "spec": spec});
        client.create(JOB.resource, "default", job).await.expect("a job");
        let mut trial = Trial { client, jobs, feed, queue: Queue::default() };
        trial.look().await;
        trial
    }

    async fn look(&mut self) -> Option<Duration> {
        self.feed.drain(|change| self.jobs.observe(change, &mut self.queue)).expect("in time");
        self.jobs.sync(&Key::new("default", "j")).await.expect("it goes")
    }

    fn status(&self) -> Value {
        self.client.get(JOB.resource, "default", "j").expect("the job").value()["status"].clone()
    }

    fn pods(&self) -> Vec<ObjectRef> {
        self.client.store().snapshot(&"pods".into()).range(None, None).cloned().collect()
    }

    async fn change(&self, change: impl Fn(&mut Value) + Send + Sync) {
        let written = self.client.update(JOB.resource, "default", "j", |job| {
            change(job);
            Ok(())
        });
        written.await.expect("written");
    }

    /// Pods of these indexes succeed.
    async fn succeed(&self, indexes: &[i64]) {
        for pod in self.pods().iter().filter(|p| index_of(p).is_some_and(|i| indexes.contains(&i))) {
            let written = self.client.update_status("pods", "default", &pod.key.name, |pod| {
                pod["status"]["phase"] = "Succeeded".into();
                Ok(())
            });
            written.await.expect("succeeds");
        }
    }

    /// Indexes of the pods that are not being deleted, in order.
    fn staying(&self) -> Vec<i64> {
        let mut out: Vec<i64> =
            self.pods().iter().filter(|p| !p.keys.deleting).map(|p| index_of(p).unwrap_or(-1)).collect();
        out.sort_unstable();
        out
    }

    /// Its node has all pods: then they do not go at once when they are deleted.
    async fn start_pods(&self) {
        for pod in self.pods() {
            let bound = self.client.update_status("pods", "default", &pod.key.name, |pod| {
                pod["status"]["phase"] = "Running".into();
                pod["status"]["startTime"] = Timestamp::now().to_seconds_text().into();
                Ok(())
            });
            bound.await.expect("runs");
            self.client.bind(&pod, "n").await.expect("bound");
        }
    }
}

/// A job that was suspended counted the pods that it deleted itself as failed, and ended with BackoffLimitExceeded.
#[tokio::test]
async fn pods_that_a_job_deletes_itself_are_no_failures() {
    let server = crate::serve::testing::server().await;
    let spec = json!({"parallelism": 2, "completions": 2, "backoffLimit": 0});
    let mut trial = Trial::begin(server, spec).await;
    trial.start_pods().await;
    trial.look().await;
    assert_eq!(trial.status()["active"].as_i64(), Some(2));
    trial.change(|job| job["spec"]["suspend"] = true.into()).await;
    for _ in 0..3 {
        trial.look().await;
    }
    let pods = trial.pods();
    assert!(pods.iter().all(|p| p.keys.deleting && PodDigest::of(p).finalizers.is_empty()), "{pods:?}");
    let status = trial.status();
    assert!(status["failed"].is_null() && status["uncountedTerminatedPods"] == json!({}), "{status}");
    assert_eq!(status["conditions"][0]["type"], "Suspended");
}

/// While the pods of a job past its deadline ended, it was looked at over and over without any wait.
#[tokio::test]
async fn a_job_past_its_deadline_waits_for_its_pods() {
    let server = crate::serve::testing::server().await;
    let mut trial = Trial::begin(server, json!({"activeDeadlineSeconds": 0})).await;
    trial.start_pods().await;
    for _ in 0..2 {
        assert_eq!(trial.look().await, None);
    }
    assert!(trial.pods().iter().all(|p| p.keys.deleting) && !trial.pods().is_empty());
}

fn elastic(completions: i64) -> Value {
    json!({"parallelism": completions, "completions": completions, "completionMode": "Indexed"})
}

fn resize(job: &mut Value, completions: i64) {
    job["spec"]["parallelism"] = completions.into();
    job["spec"]["completions"] = completions.into();
}

/// The lowest indexes went and the others stayed, though nobody wanted them any more.
#[tokio::test]
async fn a_job_that_wants_fewer_indexes_keeps_the_pods_of_those_that_it_wants() {
    let server = crate::serve::testing::server().await;
    let mut trial = Trial::begin(server, elastic(5)).await;
    trial.start_pods().await;
    assert_eq!(trial.staying(), [0, 1, 2, 3, 4]);
    trial.change(|job| resize(job, 3)).await;
    trial.look().await;
    assert_eq!(trial.staying(), [0, 1, 2]);
}

#[tokio::test]
async fn pods_of_an_index_that_has_one_already_or_of_none_go() {
    let server = crate::serve::testing::server().await;
    let mut trial = Trial::begin(server, elastic(3)).await;
    trial.start_pods().await;
    let pods = trial.pods();
    for (at, index) in [(1, "0"), (2, "none")] {
        let written = trial.client.update("pods", "default", &pods[at].key.name, |pod| {
            pod["metadata"]["labels"][INDEX] = index.into();
            Ok(())
        });
        written.await.expect("written");
    }
    trial.look().await;
    assert_eq!(trial.staying(), [0], "as many as wanted, but not those");
    trial.look().await;
    assert_eq!(trial.staying(), [0, 1, 2]);
}

/// They counted on, the status with them was refused, and nothing of the job went on.
#[tokio::test]
async fn indexes_that_a_job_wants_no_more_are_not_done() {
    let server = crate::serve::testing::server().await;
    let mut trial = Trial::begin(server, elastic(5)).await;
    trial.start_pods().await;
    trial.succeed(&[3]).await;
    trial.look().await;
    let done = |trial: &Trial| (trial.status()["succeeded"].as_i64(), trial.status()["completedIndexes"].clone());
    assert_eq!(done(&trial), (Some(1), "3".into()));
    trial.succeed(&[0, 4]).await;
    trial.change(|job| resize(job, 4)).await;
    trial.look().await;
    assert_eq!(done(&trial), (Some(2), "0,3".into()));
    let is_counted = |p: &ObjectRef| PodDigest::of(p).finalizers.is_empty();
    assert!(trial.pods().iter().all(|p| p.field("status.phase") != "Succeeded" || is_counted(p)));
    trial.change(|job| resize(job, 3)).await;
    trial.look().await;
    assert_eq!(done(&trial), (Some(1), "0".into()));
}

#[tokio::test]
async fn a_job_of_which_no_index_is_done_any_more_tells_of_none() {
    let server = crate::serve::testing::server().await;
    let mut trial = Trial::begin(server, elastic(2)).await;
    trial.start_pods().await;
    trial.succeed(&[1]).await;
    trial.look().await;
    assert_eq!(trial.status()["completedIndexes"], "1");
    trial.change(|job| resize(job, 1)).await;
    trial.look().await;
    let status = trial.status();
    assert!(status["completedIndexes"].is_null() && status["succeeded"].is_null(), "{status}");
}

/// It stayed suspended for good.
#[tokio::test]
async fn a_job_that_reaches_its_end_while_it_is_suspended_is_done() {
    let (both, one) = (json!([{"succeededCount": 2}]), json!([{"succeededIndexes": "0"}]));
    // With one index done the pod of the other ends first.
    let cases: [(Value, &[i64], &str, bool); 3] = [
        (Value::Null, &[0, 1], "CompletionsReached", true),
        (both, &[0, 1], "SuccessPolicy", true),
        (one, &[0], "SuccessPolicy", false),
    ];
    for (rules, indexes, reason, ends) in cases {
        let server = crate::serve::testing::server().await;
        let mut spec = elastic(2);
        if rules.is_array() {
            spec["successPolicy"]["rules"] = rules;
        }
        let mut trial = Trial::begin(server, spec).await;
        trial.start_pods().await;
        trial.succeed(indexes).await;
        trial.change(|job| job["spec"]["suspend"] = true.into()).await;
        for _ in 0..3 {
            trial.look().await;
        }
        let job = json!({"status": trial.status()});
        let met = condition(&job, "SuccessCriteriaMet").unwrap_or_else(|| panic!("{job}"));
        assert_eq!(met["reason"], reason);
        assert_eq!(condition(&job, "Complete").is_some(), ends, "{job}");
        assert!(condition(&job, "Suspended").is_none(), "{job}");
    }
}

/// Containers for initialization were restarted without end.
#[tokio::test]
async fn restarts_of_all_containers_count_against_the_limit() {
    let server = crate::serve::testing::server().await;
    let containers = json!([{"name": "c", "image": "i"}]);
    let template = json!({"spec": {"restartPolicy": "OnFailure", "containers": containers,
        "initContainers": [{"name": "i", "image": "i"}]}});
    let mut trial = Trial::begin(server, json!({"backoffLimit": 3, "template": template})).await;
    trial.start_pods().await;
    let target = |trial: &Trial| trial.status()["conditions"][0]["type"].clone();
    for (init, main, ends) in [(2, 0, false), (2, 1, true)] {
        let pods = trial.pods();
        let written = trial.client.update_status("pods", "default", &pods[0].key.name, |pod| {
            pod["status"]["initContainerStatuses"] = json!([{"name": "i", "restartCount": init}]);
            pod["status"]["containerStatuses"] = json!([{"name": "c", "restartCount": main}]);
            Ok(())
        });
        written.await.expect("written");
        trial.look().await;
        assert_eq!(target(&trial) == "FailureTarget", ends);
    }
}

#[test]
fn a_pod_without_containers_ended_when_it_stopped_being_ready() {
    let mut pod = json!({"metadata": {"creationTimestamp": "1970-01-01T00:00:10Z"}});
    assert_eq!(end_of(&pod), 10);
    pod["metadata"]["deletionTimestamp"] = "1970-01-01T00:01:00Z".into();
    pod["metadata"]["deletionGracePeriodSeconds"] = 30.into();
    assert_eq!(end_of(&pod), 30);
    pod["status"]["conditions"] =
        json!([{"type": "Ready", "status": "False", "lastTransitionTime": "1970-01-01T00:00:20Z"}]);
    assert_eq!(end_of(&pod), 20);
    let ended = |at: &str| json!({"state": {"terminated": {"exitCode": 1, "finishedAt": at}}});
    pod["status"]["containerStatuses"] = json!([ended("1970-01-01T00:00:15Z"), {"state": {"running": {}}}]);
    assert_eq!(end_of(&pod), 20);
    pod["status"]["containerStatuses"] = json!([ended("1970-01-01T00:00:15Z"), ended("1970-01-01T00:00:12Z")]);
    assert_eq!(end_of(&pod), 15);
}

/// Pods of an earlier job of the name, and those that had lost their owner, kept the finalizer and never went.
#[tokio::test]
async fn pods_that_no_job_counts_are_let_go() {
    let server = crate::serve::testing::server().await;
    let mut trial = Trial::begin(server, json!({"parallelism": 2, "completions": 2})).await;
    let held = |pod: &ObjectRef| PodDigest::of(pod).finalizers.iter().any(|f| **f == *FINALIZER);
    let pods = trial.pods();
    assert!(pods.len() == 2 && pods.iter().all(held));
    for (place, pod) in pods.iter().enumerate() {
        let changed = trial.client.update("pods", "default", &pod.key.name, |pod| {
            match place {
                0 => drop(pod["metadata"].as_object_mut().and_then(|m| m.remove("ownerReferences"))),
                _ => pod["metadata"]["ownerReferences"][0]["uid"] = "earlier".into(),
            }
            Ok(())
        });
        changed.await.expect("written");
    }
    trial.look().await;
    let now = trial.pods();
    let is_old = |pod: &&ObjectRef| pods.iter().any(|old| old.keys.uid == pod.keys.uid);
    assert!(now.iter().filter(is_old).count() == 2 && !now.iter().filter(is_old).any(held));
    assert!(now.len() == 4 && now.iter().filter(|pod| !is_old(pod)).all(held));
    trial.look().await;
    assert!(trial.jobs.strays.is_empty());
}
