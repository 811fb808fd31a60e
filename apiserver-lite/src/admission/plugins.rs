//! The chain: every plugin there is, in order, and which of them run.

use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Instant;

use serde_json::Value;

use super::attributes::Attributes;
use super::changes::Rounds;
use super::hooks::{Hooks, InForce};
use super::image_policy::ImagePolicy;
use super::subject::Subject;
use super::webhook::Clients;
use super::{
    Call, Operation, Reservation, Settings, auto_provision, certificates, declared_features, event_rate, gang,
    limit_ranger, namespace_lifecycle, node_restriction, node_selector, optional, owner_references, pod_resize,
    pod_security, pod_tolerations, policy, priority, quota, runtime_class, service_account, storage, tolerations,
    topology_labels, webhook,
};
use crate::metrics::{Steps, Type};
use crate::status::Result;

type Mutate = fn(&Call<'_>, &mut Value) -> Result<()>;
type Look = fn(&Call<'_>, &Value) -> Result<()>;
type Delete = fn(&Call<'_>) -> Result<()>;

/// A plugin: a name and what it does, where.
struct Plugin {
    name: &'static str,
    on_by_default: bool,
    /// What upstream's plugin of this name handles, which is what its times are shown for.
    operations: &'static [Operation],
    mutate: Option<Mutate>,
    validate: Option<Look>,
    delete: Option<Delete>,
}

impl Plugin {
    const fn new(name: &'static str) -> Self {
        Plugin { name, on_by_default: true, operations: ALL, mutate: None, validate: None, delete: None }
    }

    const fn on(mut self, operations: &'static [Operation]) -> Self {
        self.operations = operations;
        self
    }

    const fn off(mut self) -> Self {
        self.on_by_default = false;
        self
    }

    const fn mutate(mut self, with: Mutate) -> Self {
        self.mutate = Some(with);
        self
    }

    const fn validate(mut self, with: Look) -> Self {
        self.validate = Some(with);
        self
    }

    const fn delete(mut self, with: Delete) -> Self {
        self.delete = Some(with);
        self
    }
}

const ALL: &[Operation] = &[Operation::Create, Operation::Update, Operation::Delete, Operation::Connect];
const STORED: &[Operation] = &[Operation::Create, Operation::Update, Operation::Delete];
const WRITTEN: &[Operation] = &[Operation::Create, Operation::Update];
const CREATED: &[Operation] = &[Operation::Create];
const UPDATED: &[Operation] = &[Operation::Update];

const ACCOUNTS: &str = "ServiceAccount";
const ALWAYS_DENY: &str = "AlwaysDeny";
const AUTO_PROVISION: &str = "NamespaceAutoProvision";
const EVENT_RATES: &str = "EventRateLimit";
const IMAGE_POLICY: &str = "ImagePolicyWebhook";
const QUOTA: &str = "ResourceQuota";
const MUTATING_POLICY: &str = "MutatingAdmissionPolicy";
const MUTATING_WEBHOOK: &str = "MutatingAdmissionWebhook";
const VALIDATING_WEBHOOK: &str = "ValidatingAdmissionWebhook";
const VALIDATING_POLICY: &str = "ValidatingAdmissionPolicy";

/// In the order they run.
static PLUGINS: &[Plugin] = &[
    Plugin::new("AlwaysAdmit").off(),
    // It writes, so it is no function among others.
    Plugin::new(AUTO_PROVISION).on(CREATED).off(),
    Plugin::new("NamespaceLifecycle")
        .on(STORED)
        .mutate(namespace_lifecycle::mutate)
        .delete(namespace_lifecycle::delete),
    Plugin::new("NamespaceExists").on(STORED).validate(optional::in_a_namespace).off(),
    Plugin::new("LimitPodHardAntiAffinityTopology").on(WRITTEN).validate(optional::own_node_only).off(),
    Plugin::new("LimitRanger").on(WRITTEN).mutate(limit_ranger::mutate).validate(limit_ranger::validate),
    Plugin::new(ACCOUNTS).on(WRITTEN).mutate(service_account::mutate).validate(service_account::validate),
    // Off upstream, on with every installer: the node authorizer is half without it.
    Plugin::new("NodeRestriction").on(STORED).mutate(node_restriction::mutate).delete(node_restriction::delete),
    Plugin::new("TaintNodesByCondition").on(CREATED).mutate(tolerations::taint_new_nodes),
    Plugin::new("AlwaysPullImages").on(WRITTEN).mutate(optional::pull_always).validate(optional::pulls_always).off(),
    // It waits for an answer, so it is no function either.
    Plugin::new(IMAGE_POLICY).on(WRITTEN).off(),
    Plugin::new("PodSecurity").on(WRITTEN).validate(pod_security::validate),
    Plugin::new("PodNodeSelector").on(CREATED).mutate(node_selector::mutate).validate(node_selector::validate).off(),
    Plugin::new("Priority").on(STORED).mutate(priority::mutate).validate(priority::validate),
    Plugin::new("DefaultTolerationSeconds").on(WRITTEN).mutate(tolerations::add_defaults),
    Plugin::new("PodTolerationRestriction")
        .on(WRITTEN)
        .mutate(pod_tolerations::mutate)
        .validate(pod_tolerations::validate)
        .off(),
    Plugin::new(EVENT_RATES).on(WRITTEN).validate(event_rate::validate).off(),
    Plugin::new("ExtendedResourceToleration").on(WRITTEN).mutate(optional::tolerate_resources).off(),
    Plugin::new("DefaultStorageClass").on(CREATED).mutate(storage::default_storage_class),
    Plugin::new("StorageObjectInUseProtection").on(CREATED).mutate(storage::protect),
    Plugin::new("PodGroupProtection").on(CREATED).mutate(gang::protect),
    Plugin::new("OwnerReferencesPermissionEnforcement").on(WRITTEN).validate(owner_references::validate).off(),
    Plugin::new("PersistentVolumeClaimResize").on(UPDATED).validate(storage::resize),
    Plugin::new("RuntimeClass").on(CREATED).mutate(runtime_class::mutate).validate(runtime_class::validate),
    Plugin::new("CertificateApproval").on(UPDATED).validate(certificates::approval),
    Plugin::new("CertificateSigning").on(UPDATED).validate(certificates::signing),
    Plugin::new("ClusterTrustBundleAttest").on(WRITTEN).validate(certificates::attest),
    Plugin::new("CertificateSubjectRestriction").on(CREATED).validate(certificates::subject),
    Plugin::new("DefaultIngressClass").on(CREATED).mutate(storage::default_ingress_class),
    Plugin::new("DenyServiceExternalIPs").on(WRITTEN).validate(optional::no_external_addresses).off(),
    Plugin::new("PodTopologyLabels").on(CREATED).mutate(topology_labels::mutate),
    Plugin::new("PodGroupWorkloadExists").on(CREATED).validate(gang::workload_exists),
    Plugin::new("NodeDeclaredFeatureValidator").on(UPDATED).validate(declared_features::validate),
    Plugin::new("JobValidation").on(UPDATED).validate(gang::same_parallelism),
    Plugin::new("PodResizeValidator").on(UPDATED).validate(pod_resize::validate),
    // These ask what clients have stored, between mutating and validating plugins, and are no functions among others.
    Plugin::new(MUTATING_POLICY),
    Plugin::new(MUTATING_WEBHOOK),
    Plugin::new(VALIDATING_POLICY),
    Plugin::new(VALIDATING_WEBHOOK),
    // It writes, so it is none either; last of those that let anything through.
    Plugin::new(QUOTA).on(WRITTEN),
    Plugin::new(ALWAYS_DENY).mutate(optional::refuse_write).delete(optional::refuse).off(),
];

/// The flag and what is wrong with it.
#[derive(Debug, thiserror::Error)]
#[error("{reason}")]
pub struct PluginError {
    pub flag: &'static str,
    pub reason: String,
}

/// The plugins that run.
pub struct Admission {
    enabled: Vec<&'static Plugin>,
    /// None when quotas limit nothing.
    quota: Option<quota::Locks>,
    hooks: Hooks,
    clients: Clients,
    settings: Settings,
    /// None when nobody decides about images.
    image_policy: Option<ImagePolicy>,
    provides_namespaces: bool,
    /// Pods get accounts, and wait for the one that they get.
    gives_accounts: bool,
    /// Places of those that are no functions among others; none of what does not run.
    mutating_policies: Option<usize>,
    mutating_webhooks: Option<usize>,
    validating_policies: Option<usize>,
    validating_webhooks: Option<usize>,
    quotas: Option<usize>,
    steps: Steps,
}

impl Admission {
    /// The chain that two flags ask for.
    ///
    /// # Errors
    /// Names that are not known or that both flags have, and plugins that lack their configuration.
    pub fn new(enable: &[String], disable: &[String], mut settings: Settings) -> Result<Self, PluginError> {
        const ENABLE: &str = "enable-admission-plugins";
        const DISABLE: &str = "disable-admission-plugins";
        let known = |name: &str| PLUGINS.iter().any(|p| p.name == name);
        for (flag, names) in [(ENABLE, enable), (DISABLE, disable)] {
            for name in names {
                if !known(name) {
                    return Err(PluginError { flag, reason: format!("plugin {name:?} is unknown") });
                }
            }
        }
        let both: Vec<&str> = enable.iter().filter(|e| disable.contains(e)).map(String::as_str).collect();
        if !both.is_empty() {
            let reason = format!("[{}] in {ENABLE} and {DISABLE} overlapped", both.join(" "));
            return Err(PluginError { flag: ENABLE, reason });
        }
        let holds = |names: &[String], plugin: &Plugin| names.iter().any(|n| n == plugin.name);
        let runs = |p: &&Plugin| (p.on_by_default || holds(enable, p)) && !holds(disable, p);
        let enabled: Vec<&Plugin> = PLUGINS.iter().filter(runs).collect();
        let place_of = |name: &str| enabled.iter().position(|p| p.name == name);
        let has = |name: &str| place_of(name).is_some();
        let needs = [
            (EVENT_RATES, settings.event_rates.is_empty(), "its limits"),
            (IMAGE_POLICY, settings.image_policy.is_none(), "its configuration"),
        ];
        for (name, lacks, what) in needs {
            if has(name) && lacks {
                let reason = format!("plugin {name:?} needs {what} in --admission-control-config-file");
                return Err(PluginError { flag: ENABLE, reason });
            }
        }
        let image_policy = match settings.image_policy.take().filter(|_| has(IMAGE_POLICY)) {
            Some((configuration, place)) => {
                let read = ImagePolicy::read(&configuration, place.parent().unwrap_or(Path::new("")));
                Some(read.map_err(|why| PluginError {
                    flag: "admission-control-config-file",
                    reason: format!("{}: plugin {IMAGE_POLICY}: {why}", place.display()),
                })?)
            }
            None => None,
        };
        let quota = has(QUOTA).then(quota::Locks::default);
        Ok(Admission {
            image_policy,
            quota,
            hooks: Hooks::default(),
            clients: Clients::new(std::mem::take(&mut settings.logins)),
            settings,
            provides_namespaces: has(AUTO_PROVISION),
            gives_accounts: has(ACCOUNTS),
            mutating_policies: place_of(MUTATING_POLICY),
            mutating_webhooks: place_of(MUTATING_WEBHOOK),
            validating_policies: place_of(VALIDATING_POLICY),
            validating_webhooks: place_of(VALIDATING_WEBHOOK),
            quotas: place_of(QUOTA),
            steps: Steps::new(enabled.iter().map(|p| p.name)),
            enabled,
        })
    }

    /// Connections to webhooks of all kinds.
    pub fn clients(&self) -> &Clients {
        &self.clients
    }

    /// Whether nobody is asked that clients have named: before the server listens, who might answer has nobody to ask
    /// either.
    pub fn ask_nobody(&self, nobody: bool) {
        self.hooks.asleep.store(nobody, Ordering::Relaxed);
    }

    /// What the plugins were told at the start.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Names of the plugins that run, in order.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.enabled.iter().map(|p| p.name)
    }

    /// Whether anybody is shown whole objects, owners of fields included.
    pub fn shows_owners(&self, server: &crate::server::ApiServer) -> bool {
        let in_force = self.hooks.current(server);
        !in_force.changes_nothing() || !in_force.validating.is_empty() || !in_force.validating_webhooks.is_empty()
    }

    /// Completes a new state, or refuses it.
    ///
    /// # Errors
    /// The first plugin's that has something against it.
    pub async fn mutate(&self, call: &Call<'_>, new: &mut Value) -> Result<()> {
        let since = Instant::now();
        let outcome = self.mutate_all(call, new).await;
        self.steps.step(Type::Admit, call.operation, outcome.is_err(), since.elapsed());
        outcome
    }

    async fn mutate_all(&self, call: &Call<'_>, new: &mut Value) -> Result<()> {
        if self.provides_namespaces {
            auto_provision::provide(call).await?;
        }
        if self.gives_accounts {
            service_account::wait_for_default(call, new).await;
        }
        self.complete(call, new)?;
        let in_force = self.hooks.current(call.server);
        if in_force.changes_nothing() {
            return Ok(());
        }
        // Of policies and of webhooks.
        let mut rounds = [Rounds::default(), Rounds::default()];
        let mut object = Some(std::mem::take(new));
        let mut outcome = self.change(call, &in_force, &mut object, &mut rounds).await;
        if outcome.is_ok() && rounds.iter().any(|rounds| rounds.changed) {
            // What was changed is completed once more, and seen by who asked for it.
            rounds.iter_mut().for_each(Rounds::again);
            outcome = match &mut object {
                Some(object) => self.complete(call, object),
                None => Ok(()),
            };
            if outcome.is_ok() {
                outcome = self.change(call, &in_force, &mut object, &mut rounds).await;
            }
        }
        *new = object.unwrap_or_default();
        outcome
    }

    /// Lets the server's own plugins complete an object.
    fn complete(&self, call: &Call<'_>, new: &mut Value) -> Result<()> {
        let mut watch = self.watch(call, Type::Admit);
        for (place, plugin) in self.enabled.iter().enumerate() {
            if let Some(mutate) = plugin.mutate {
                let outcome = mutate(call, new);
                watch.done(place, plugin, &outcome);
                outcome?;
            }
        }
        Ok(())
    }

    /// Takes the time that each plugin needs, one after the other.
    fn watch(&self, call: &Call<'_>, kind: Type) -> Watch<'_> {
        Watch { steps: &self.steps, kind, operation: call.operation, since: Instant::now() }
    }

    /// What the chain has cost, and what the webhooks have.
    pub fn reset_metrics(&self) {
        self.steps.reset();
        self.clients.counted().reset();
    }

    pub fn metrics(&self, out: &mut String) {
        self.steps.write(out);
        self.clients.counted().write(out);
    }

    /// Lets what clients have stored change an object.
    async fn change(
        &self,
        call: &Call<'_>,
        in_force: &InForce,
        object: &mut Option<Value>,
        rounds: &mut [Rounds; 2],
    ) -> Result<()> {
        let place = object.as_ref().map(place);
        let attributes = Attributes::new(call, place.as_ref());
        let mut subject = Subject::owned(object.take());
        let outcome = self.change_subject(&attributes, in_force, &mut subject, rounds).await;
        *object = subject.into_value();
        outcome
    }

    async fn change_subject(
        &self,
        attributes: &Attributes<'_>,
        in_force: &InForce,
        subject: &mut Subject<'_>,
        [policies, webhooks]: &mut [Rounds; 2],
    ) -> Result<()> {
        let mut watch = self.watch(attributes.call, Type::Admit);
        if let Some(place) = self.mutating_policies {
            let outcome = policy::mutate(&in_force.mutating, attributes, subject, policies);
            watch.done(place, self.enabled[place], &outcome);
            outcome?;
        }
        if let Some(place) = self.mutating_webhooks {
            let asked = webhook::mutate(&self.clients, &in_force.mutating_webhooks, attributes, subject, webhooks);
            let outcome = asked.await;
            watch.done(place, self.enabled[place], &outcome);
            outcome?;
        }
        Ok(())
    }

    /// Looks at a new state as it would be stored, and reserves the quota it needs.
    ///
    /// # Errors
    /// The first plugin's that has something against it.
    pub async fn validate(&self, call: &Call<'_>, new: &Value) -> Result<Reservation> {
        let since = Instant::now();
        let outcome = self.validate_all(call, new).await;
        self.steps.step(Type::Validate, call.operation, outcome.is_err(), since.elapsed());
        outcome
    }

    async fn validate_all(&self, call: &Call<'_>, new: &Value) -> Result<Reservation> {
        let mut watch = self.watch(call, Type::Validate);
        for (place, plugin) in self.enabled.iter().enumerate() {
            if let Some(validate) = plugin.validate {
                let outcome = validate(call, new);
                watch.done(place, plugin, &outcome);
                outcome?;
            }
            if let Some(policy) = self.image_policy.as_ref().filter(|_| plugin.name == IMAGE_POLICY) {
                let outcome = policy.review(call, new).await;
                watch.done(place, plugin, &outcome);
                outcome?;
            }
        }
        self.ask(call, Some(new)).await?;
        let Some((locks, place)) = self.quota.as_ref().zip(self.quotas) else { return Ok(Reservation::default()) };
        let mut watch = self.watch(call, Type::Validate);
        let outcome = quota::reserve(locks, call, new).await;
        watch.done(place, self.enabled[place], &outcome);
        outcome
    }

    /// The right to count what a namespace uses; None when quotas limit nothing.
    pub async fn recount(&self, namespace: &str) -> Option<quota::Recount> {
        match &self.quota {
            Some(locks) => Some(locks.recount(namespace).await),
            None => None,
        }
    }

    /// Looks at a delete.
    ///
    /// # Errors
    /// The first plugin's that has something against it.
    pub async fn delete(&self, call: &Call<'_>) -> Result<()> {
        let since = Instant::now();
        let outcome = self.let_go(call).await;
        self.steps.step(Type::Admit, call.operation, outcome.is_err(), since.elapsed());
        outcome?;
        self.asked(call, None).await
    }

    /// What the plugins have to say about a delete before anybody validates it.
    async fn let_go(&self, call: &Call<'_>) -> Result<()> {
        let mut watch = self.watch(call, Type::Admit);
        for (place, plugin) in self.enabled.iter().enumerate() {
            if let Some(delete) = plugin.delete {
                let outcome = delete(call);
                watch.done(place, plugin, &outcome);
                outcome?;
            }
        }
        let in_force = self.hooks.current(call.server);
        if !in_force.changes_nothing() {
            self.change(call, &in_force, &mut None, &mut Default::default()).await?;
        }
        Ok(())
    }

    /// The second pass of what no plugin of the server's own looks at.
    async fn asked(&self, call: &Call<'_>, new: Option<&Value>) -> Result<()> {
        let since = Instant::now();
        let outcome = self.ask(call, new).await;
        self.steps.step(Type::Validate, call.operation, outcome.is_err(), since.elapsed());
        outcome
    }

    /// Looks at a connection; of the server's own plugins only the one that refuses everything has anything to say.
    ///
    /// # Errors
    /// The refusal of a policy or webhook.
    pub async fn connect(&self, call: &Call<'_>, options: Value) -> Result<()> {
        let since = Instant::now();
        let in_force = self.hooks.current(call.server);
        let mut object = Some(options);
        let mut outcome = match in_force.changes_nothing() {
            true => Ok(()),
            false => self.change(call, &in_force, &mut object, &mut Default::default()).await,
        };
        if self.enabled.last().is_some_and(|last| last.name == ALWAYS_DENY) {
            outcome = outcome.and_then(|()| optional::refuse(call));
        }
        self.steps.step(Type::Admit, call.operation, outcome.is_err(), since.elapsed());
        outcome?;
        self.asked(call, object.as_ref()).await
    }

    /// Asks what clients have stored to decide about requests.
    async fn ask(&self, call: &Call<'_>, new: Option<&Value>) -> Result<()> {
        let in_force = self.hooks.current(call.server);
        let attributes = Attributes::new(call, new);
        let subject = Subject::seen(new);
        let mut watch = self.watch(call, Type::Validate);
        if let Some(place) = self.validating_policies {
            let outcome = policy::validate(&in_force.validating, &attributes, &subject);
            watch.done(place, self.enabled[place], &outcome);
            outcome?;
        }
        if let Some(place) = self.validating_webhooks {
            let asked = webhook::validate(&self.clients, &in_force.validating_webhooks, &attributes, &subject);
            let outcome = asked.await;
            watch.done(place, self.enabled[place], &outcome);
            outcome?;
        }
        Ok(())
    }
}

/// Takes the times of plugins that run one after the other: one look at the clock each.
struct Watch<'a> {
    steps: &'a Steps,
    kind: Type,
    operation: Operation,
    since: Instant,
}

impl Watch<'_> {
    fn done<T>(&mut self, place: usize, plugin: &Plugin, outcome: &Result<T>) {
        let now = Instant::now();
        if plugin.operations.contains(&self.operation) {
            self.steps.plugin(place, self.kind, self.operation, outcome.is_err(), now - self.since);
        }
        self.since = now;
    }
}

/// As much of an object as tells where it is.
fn place(object: &Value) -> Value {
    serde_json::json!({"metadata": {"name": object["metadata"]["name"]}})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain(enable: &str, disable: &str) -> Result<Vec<&'static str>, PluginError> {
        let list = |text: &str| text.split(',').filter(|n| !n.is_empty()).map(Into::into).collect::<Vec<String>>();
        Admission::new(&list(enable), &list(disable), Settings::default()).map(|a| a.names().collect())
    }

    #[test]
    fn flags_add_and_remove_plugins_without_changing_the_order() {
        let default = chain("", "").expect("defaults");
        let fewer = chain("", "Priority").expect("known");
        assert_eq!(fewer.len() + 1, default.len());
        assert!(default.iter().filter(|n| **n != "Priority").eq(fewer.iter()));
        assert_eq!(chain("Priority", "").expect("on already"), default);
        let more = chain("AlwaysPullImages,DenyServiceExternalIPs", "").expect("off until asked for");
        assert_eq!(more.len(), default.len() + 2);
    }

    #[test]
    fn names_that_make_no_sense_are_refused_with_their_flag() {
        for (enable, disable, flag) in [
            ("Nonsense", "", "enable-admission-plugins"),
            ("", "Nonsense", "disable-admission-plugins"),
            ("ImagePolicyWebhook", "", "enable-admission-plugins"),
            ("EventRateLimit", "", "enable-admission-plugins"),
            ("alwaysadmit", "", "enable-admission-plugins"),
            ("Priority", "Priority", "enable-admission-plugins"),
        ] {
            assert_eq!(chain(enable, disable).expect_err("wrong").flag, flag);
        }
        assert!(chain("", "ImagePolicyWebhook").is_ok());
    }

    #[test]
    fn the_chain_is_the_one_of_the_release() {
        const OFF: [&str; 14] = [
            "AlwaysAdmit",
            "AlwaysDeny",
            "AlwaysPullImages",
            "DenyServiceExternalIPs",
            "EventRateLimit",
            "ExtendedResourceToleration",
            "ImagePolicyWebhook",
            "LimitPodHardAntiAffinityTopology",
            "NamespaceAutoProvision",
            "NamespaceExists",
            "NodeRestriction",
            "OwnerReferencesPermissionEnforcement",
            "PodNodeSelector",
            "PodTolerationRestriction",
        ];
        let mut off: Vec<&str> = PLUGINS.iter().filter(|p| !p.on_by_default).map(|p| p.name).collect();
        off.push("NodeRestriction");
        off.sort_unstable();
        assert_eq!(off, OFF);
        assert_eq!(PLUGINS.len(), OFF.len() + 27, "on unless told otherwise");
    }
}
