//! The chain: every plugin there is, in order, and which of them run.

use serde_json::Value;

use super::attributes::Attributes;
use super::changes::Rounds;
use super::hooks::{Hooks, InForce};
use super::webhook::Clients;
use super::{
    Call, Reservation, Settings, auto_provision, certificates, event_rate, limit_ranger, namespace_lifecycle,
    node_restriction, node_selector, optional, owner_references, pod_resize, pod_security, pod_tolerations, policy,
    priority, quota, runtime_class, service_account, storage, tolerations, topology_labels, webhook,
};
use crate::status::Result;

type Mutate = fn(&Call<'_>, &mut Value) -> Result<()>;
type Look = fn(&Call<'_>, &Value) -> Result<()>;
type Delete = fn(&Call<'_>) -> Result<()>;

/// A plugin: a name and what it does, where.
struct Plugin {
    name: &'static str,
    on_by_default: bool,
    mutate: Option<Mutate>,
    validate: Option<Look>,
    delete: Option<Delete>,
}

impl Plugin {
    const fn new(name: &'static str) -> Self {
        Plugin { name, on_by_default: true, mutate: None, validate: None, delete: None }
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

const AUTO_PROVISION: &str = "NamespaceAutoProvision";
const EVENT_RATES: &str = "EventRateLimit";
const QUOTA: &str = "ResourceQuota";
const MUTATING_POLICY: &str = "MutatingAdmissionPolicy";
const MUTATING_WEBHOOK: &str = "MutatingAdmissionWebhook";
const VALIDATING_WEBHOOK: &str = "ValidatingAdmissionWebhook";
const VALIDATING_POLICY: &str = "ValidatingAdmissionPolicy";

/// In the order they run.
static PLUGINS: &[Plugin] = &[
    // It writes, so it is no function among others.
    Plugin::new(AUTO_PROVISION).off(),
    Plugin::new("NamespaceLifecycle").mutate(namespace_lifecycle::mutate).delete(namespace_lifecycle::delete),
    Plugin::new("NamespaceExists").validate(optional::in_a_namespace).off(),
    Plugin::new("LimitPodHardAntiAffinityTopology").validate(optional::own_node_only).off(),
    Plugin::new("LimitRanger").mutate(limit_ranger::mutate).validate(limit_ranger::validate),
    Plugin::new("ServiceAccount").mutate(service_account::mutate).validate(service_account::validate),
    // Off upstream, on with every installer: the node authorizer is half without it.
    Plugin::new("NodeRestriction").mutate(node_restriction::mutate).delete(node_restriction::delete),
    Plugin::new("TaintNodesByCondition").mutate(tolerations::taint_new_nodes),
    Plugin::new("AlwaysPullImages").mutate(optional::pull_always).validate(optional::pulls_always).off(),
    Plugin::new("PodNodeSelector").mutate(node_selector::mutate).validate(node_selector::validate).off(),
    Plugin::new("PodSecurity").validate(pod_security::validate),
    Plugin::new("Priority").mutate(priority::mutate).validate(priority::validate),
    Plugin::new("DefaultTolerationSeconds").mutate(tolerations::add_defaults),
    Plugin::new("PodTolerationRestriction").mutate(pod_tolerations::mutate).validate(pod_tolerations::validate).off(),
    Plugin::new(EVENT_RATES).validate(event_rate::validate).off(),
    Plugin::new("ExtendedResourceToleration").mutate(optional::tolerate_resources).off(),
    Plugin::new("DefaultStorageClass").mutate(storage::default_storage_class),
    Plugin::new("StorageObjectInUseProtection").mutate(storage::protect),
    Plugin::new("OwnerReferencesPermissionEnforcement").validate(owner_references::validate).off(),
    Plugin::new("PersistentVolumeClaimResize").validate(storage::resize),
    Plugin::new("RuntimeClass").mutate(runtime_class::mutate).validate(runtime_class::validate),
    Plugin::new("CertificateApproval").validate(certificates::approval),
    Plugin::new("CertificateSigning").validate(certificates::signing),
    Plugin::new("ClusterTrustBundleAttest").validate(certificates::attest),
    Plugin::new("CertificateSubjectRestriction").validate(certificates::subject),
    Plugin::new("DefaultIngressClass").mutate(storage::default_ingress_class),
    Plugin::new("PodTopologyLabels").mutate(topology_labels::mutate),
    Plugin::new("PodResizeValidator").validate(pod_resize::validate),
    Plugin::new("DenyServiceExternalIPs").validate(optional::no_external_addresses).off(),
    // These ask what clients have stored, between mutating and validating plugins, and are no functions among others.
    Plugin::new(MUTATING_POLICY),
    Plugin::new(MUTATING_WEBHOOK),
    Plugin::new(VALIDATING_POLICY),
    Plugin::new(VALIDATING_WEBHOOK),
    // It writes, so it is none either; always last.
    Plugin::new(QUOTA),
];

/// Plugins of upstream that are not available here; switching them off asks for nothing.
const NOT_AVAILABLE: &[&str] =
    &["AlwaysAdmit", "AlwaysDeny", "ImagePolicyWebhook", "NodeDeclaredFeatureValidator", "PodGroupProtection"];

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
    provides_namespaces: bool,
    asks_mutating_policies: bool,
    asks_mutating_webhooks: bool,
    asks_validating_policies: bool,
    asks_validating_webhooks: bool,
}

impl Admission {
    /// The chain that two flags ask for.
    ///
    /// # Errors
    /// Names that are not known, that are not available, or that both flags have.
    pub fn new(enable: &[String], disable: &[String], settings: Settings) -> Result<Self, PluginError> {
        const ENABLE: &str = "enable-admission-plugins";
        const DISABLE: &str = "disable-admission-plugins";
        let known = |name: &str| PLUGINS.iter().any(|p| p.name == name);
        for (flag, names) in [(ENABLE, enable), (DISABLE, disable)] {
            for name in names {
                let elsewhere = NOT_AVAILABLE.contains(&name.as_str());
                if !known(name) && !elsewhere {
                    return Err(PluginError { flag, reason: format!("plugin {name:?} is unknown") });
                }
                if elsewhere && flag == ENABLE {
                    return Err(PluginError { flag, reason: format!("plugin {name:?} is not available") });
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
        let has = |name: &str| enabled.iter().any(|p| p.name == name);
        if has(EVENT_RATES) && settings.event_rates.is_empty() {
            let reason = format!("plugin {EVENT_RATES:?} needs its limits in --admission-control-config-file");
            return Err(PluginError { flag: ENABLE, reason });
        }
        let quota = has(QUOTA).then(quota::Locks::default);
        Ok(Admission {
            quota,
            hooks: Hooks::default(),
            clients: Clients::default(),
            settings,
            provides_namespaces: has(AUTO_PROVISION),
            asks_mutating_policies: has(MUTATING_POLICY),
            asks_mutating_webhooks: has(MUTATING_WEBHOOK),
            asks_validating_policies: has(VALIDATING_POLICY),
            asks_validating_webhooks: has(VALIDATING_WEBHOOK),
            enabled,
        })
    }

    /// Connections to webhooks of all kinds.
    pub fn clients(&self) -> &Clients {
        &self.clients
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
        if self.provides_namespaces {
            auto_provision::provide(call).await?;
        }
        service_account::wait_for_default(call, new).await;
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
        self.enabled.iter().filter_map(|p| p.mutate).try_for_each(|mutate| mutate(call, new))
    }

    /// Lets what clients have stored change an object.
    async fn change(
        &self,
        call: &Call<'_>,
        in_force: &InForce,
        object: &mut Option<Value>,
        [policies, webhooks]: &mut [Rounds; 2],
    ) -> Result<()> {
        let place = object.as_ref().map(place);
        let attributes = Attributes::new(call, place.as_ref());
        if self.asks_mutating_policies {
            policy::mutate(&in_force.mutating, &attributes, object, policies)?;
        }
        if self.asks_mutating_webhooks {
            webhook::mutate(&self.clients, &in_force.mutating_webhooks, &attributes, object, webhooks).await?;
        }
        Ok(())
    }

    /// Looks at a new state as it would be stored, and reserves the quota it needs.
    ///
    /// # Errors
    /// The first plugin's that has something against it.
    pub async fn validate(&self, call: &Call<'_>, new: &Value) -> Result<Reservation> {
        for validate in self.enabled.iter().filter_map(|p| p.validate) {
            validate(call, new)?;
        }
        self.ask(call, Some(new)).await?;
        match &self.quota {
            Some(locks) => quota::reserve(locks, call, new).await,
            None => Ok(Reservation::default()),
        }
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
        for delete in self.enabled.iter().filter_map(|p| p.delete) {
            delete(call)?;
        }
        let in_force = self.hooks.current(call.server);
        if !in_force.changes_nothing() {
            self.change(call, &in_force, &mut None, &mut Default::default()).await?;
        }
        self.ask(call, None).await
    }

    /// Looks at a connection; the server's own plugins have nothing to say about any.
    ///
    /// # Errors
    /// The refusal of a policy or webhook.
    pub async fn connect(&self, call: &Call<'_>, options: Value) -> Result<()> {
        let in_force = self.hooks.current(call.server);
        let mut object = Some(options);
        if !in_force.changes_nothing() {
            self.change(call, &in_force, &mut object, &mut Default::default()).await?;
        }
        self.ask(call, object.as_ref()).await
    }

    /// Asks what clients have stored to decide about requests.
    async fn ask(&self, call: &Call<'_>, new: Option<&Value>) -> Result<()> {
        let in_force = self.hooks.current(call.server);
        let attributes = Attributes::new(call, new);
        if self.asks_validating_policies {
            policy::validate(&in_force.validating, &attributes, new)?;
        }
        if self.asks_validating_webhooks {
            webhook::validate(&self.clients, &in_force.validating_webhooks, &attributes, new).await?;
        }
        Ok(())
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
            ("Priority", "Priority", "enable-admission-plugins"),
        ] {
            assert_eq!(chain(enable, disable).expect_err("wrong").flag, flag);
        }
        assert!(chain("", "ImagePolicyWebhook").is_ok());
    }
}
