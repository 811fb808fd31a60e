//! What plugins are told at the start: `--admission-control-config-file`, an AdmissionConfiguration of
//! `apiserver.config.k8s.io/v1` that has each plugin's configuration in it or names its file.
//!
//! EventRateLimit, ImagePolicyWebhook, MutatingAdmissionWebhook, PodNodeSelector, PodSecurity,
//! PodTolerationRestriction, ResourceQuota and ValidatingAdmissionWebhook have one; what is said to others is ignored, as
//! upstream does.
//! PodNodeSelector's and ImagePolicyWebhook's may also stand in the file by themselves, as they did before there were
//! versions.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::event_rate::EventRates;
use super::pod_security::PodSecuritySettings;
use super::quota::Limited;
use super::webhook::Logins;
use crate::tree::{list, text};

const GROUP: &str = "apiserver.config.k8s.io/v1";
const NODE_SELECTORS: &str = "podNodeSelectorPluginConfig";

/// Why the file is of no use. The operator has to correct it.
#[derive(Debug, thiserror::Error)]
#[error("{}: {reason}", path.display())]
pub struct SettingsError {
    path: PathBuf,
    reason: String,
}

#[derive(Debug, Default)]
pub struct Settings {
    /// Labels of nodes by namespace, and those for namespaces that name none under `clusterDefaultNodeSelector`.
    pub node_selectors: BTreeMap<String, String>,
    /// Tolerations of namespaces that have none of their own, and those that are allowed.
    pub tolerations: [Vec<Value>; 2],
    pub event_rates: EventRates,
    /// Who decides about images, and the file that says so: read when somebody has to.
    pub image_policy: Option<(Value, PathBuf)>,
    /// Levels of namespaces that name none, and who is exempt.
    pub pod_security: PodSecuritySettings,
    /// What needs a quota that covers it.
    pub limited: Vec<Limited>,
    /// Who the server is for mutating and for validating webhooks.
    pub logins: [Logins; 2],
}

impl Settings {
    /// Reads a file and those it names, relative to its own place.
    ///
    /// # Errors
    /// When one cannot be read or says what no plugin understands.
    pub fn load(path: &Path) -> Result<Self, SettingsError> {
        let wrong = |path: &Path, reason: String| SettingsError { path: path.into(), reason };
        let document = read(path).map_err(|reason| wrong(path, reason))?;
        let mut out = Settings::default();
        let bare = [(NODE_SELECTORS, "PodNodeSelector"), ("imagePolicy", "ImagePolicyWebhook")];
        let mut bare = bare.into_iter().filter(|(member, _)| document[*member].is_object()).peekable();
        if bare.peek().is_some() {
            for (_, plugin) in bare {
                out.take(plugin, &document, path).map_err(|reason| wrong(path, reason))?;
            }
            return Ok(out);
        }
        if text(&document, "kind") != "AdmissionConfiguration" || text(&document, "apiVersion") != GROUP {
            return Err(wrong(path, format!("must be an AdmissionConfiguration of {GROUP}")));
        }
        let mut told: Vec<&str> = Vec::new();
        // Of two entries of one plugin the first counts.
        for plugin in list(&document, "plugins") {
            if told.contains(&text(plugin, "name")) {
                continue;
            }
            told.push(text(plugin, "name"));
            let (name, file) = (text(plugin, "name"), text(plugin, "path"));
            let own = plugin.get("configuration").filter(|c| c.is_object());
            let (place, configuration) = match own {
                Some(configuration) => (path.to_owned(), configuration.clone()),
                None if file.is_empty() => continue,
                None => {
                    let place = path.parent().unwrap_or(Path::new("")).join(file);
                    let configuration = read(&place).map_err(|reason| wrong(&place, reason))?;
                    (place, configuration)
                }
            };
            let taken = out.take(name, &configuration, &place);
            taken.map_err(|reason| wrong(&place, format!("plugin {name}: {reason}")))?;
        }
        Ok(out)
    }

    fn take(&mut self, plugin: &str, configuration: &Value, place: &Path) -> Result<(), String> {
        match plugin {
            "EventRateLimit" => {
                is_of(configuration, "eventratelimit.admission.k8s.io/v1alpha1")?;
                self.event_rates = EventRates::read(configuration)?;
            }
            "ImagePolicyWebhook" => self.image_policy = Some((configuration.clone(), place.to_owned())),
            "PodNodeSelector" => {
                for (namespace, selector) in configuration[NODE_SELECTORS].as_object().into_iter().flatten() {
                    let selector = selector.as_str().ok_or_else(|| format!("{namespace} must be a text"))?;
                    super::node_selector::labels(selector).map_err(|why| format!("{namespace}: {why}"))?;
                    self.node_selectors.insert(namespace.to_string(), selector.to_owned());
                }
            }
            "PodSecurity" => self.pod_security = PodSecuritySettings::read(configuration)?,
            "PodTolerationRestriction" => {
                is_of(configuration, "podtolerationrestriction.admission.k8s.io/v1alpha1")?;
                for (name, kept) in ["default", "whitelist"].into_iter().zip(&mut self.tolerations) {
                    *kept = list(configuration, name).cloned().collect();
                    if !kept.iter().all(Value::is_object) {
                        return Err(format!("{name} must be a list of tolerations"));
                    }
                }
            }
            "ResourceQuota" => self.limited = Limited::read(configuration)?,
            "MutatingAdmissionWebhook" => self.logins[0] = Logins::read(configuration)?,
            "ValidatingAdmissionWebhook" => self.logins[1] = Logins::read(configuration)?,
            _ => tracing::warn!(plugin, "a configuration that no plugin here takes is ignored"),
        }
        Ok(())
    }
}

fn read(path: &Path) -> Result<Value, String> {
    let text = std::fs::read(path).map_err(|e| e.to_string())?;
    proto::yaml::parse(&text).map_err(|e| e.to_string())
}

fn is_of(configuration: &Value, version: &str) -> Result<(), String> {
    if text(configuration, "kind") == "Configuration" && text(configuration, "apiVersion") == version {
        return Ok(());
    }
    Err(format!("must be a Configuration of {version}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(name: &str, text: &str) -> Result<Settings, String> {
        let folder = std::env::temp_dir().join(format!("admission-settings-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let limits = "apiVersion: eventratelimit.admission.k8s.io/v1alpha1\nkind: Configuration\n\
                      limits: [{type: Server, qps: 1, burst: 2}]\n";
        std::fs::write(folder.join("rates.yaml"), limits).expect("a file");
        std::fs::write(folder.join("all.yaml"), text).expect("a file");
        let found = Settings::load(&folder.join("all.yaml")).map_err(|e| e.to_string());
        std::fs::remove_dir_all(&folder).expect("removed");
        found
    }

    #[test]
    fn configurations_stand_in_the_file_or_beside_it() {
        let head = format!("apiVersion: {GROUP}\nkind: AdmissionConfiguration\nplugins:\n");
        let own = "- name: PodNodeSelector\n  configuration: {podNodeSelectorPluginConfig: {a: 'b=c'}}\n";
        let all = load("own", &format!("{head}- {{name: EventRateLimit, path: rates.yaml}}\n{own}")).expect("good");
        assert_eq!(all.node_selectors["a"], "b=c");
        assert!(!all.event_rates.is_empty());
        let twice = format!("{head}- {{name: Priority, configuration: {{a: b}}}}\n{own}{}", own.replace("b=c", "b=d"));
        assert_eq!(load("twice", &twice).expect("what is no plugin's is ignored").node_selectors["a"], "b=c");
        assert_eq!(load("old", "podNodeSelectorPluginConfig: {a: 'b=c'}").expect("good").node_selectors["a"], "b=c");
        for (name, text, why) in [
            ("kind", "kind: Other", "must be an AdmissionConfiguration"),
            (
                "webhooks",
                &format!("{head}- {{name: ValidatingAdmissionWebhook, configuration: {{}}}}"),
                "plugin ValidatingAdmissionWebhook: must be a WebhookAdmissionConfiguration",
            ),
            ("missing", &format!("{head}- {{name: EventRateLimit, path: none.yaml}}"), "No such file"),
            ("wrong", &format!("{head}- {{name: EventRateLimit, configuration: {{}}}}"), "must be a Configuration of"),
        ] {
            let error = load(name, text).expect_err(name);
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn who_decides_about_images_matters_when_somebody_has_to() {
        let inner = "imagePolicy: {kubeConfigFile: none}";
        let whole = format!(
            "apiVersion: {GROUP}\nkind: AdmissionConfiguration\nplugins:\n\
             - {{name: ImagePolicyWebhook, configuration: {{{inner}}}}}\n"
        );
        let with = |name: &str, text: &str, enable: &[String]| {
            let chain = super::super::Admission::new(enable, &[], load(name, text).expect("not read yet"));
            chain.map(drop).map_err(|e| format!("{}: {e}", e.flag))
        };
        for (name, text) in [("images", &*whole), ("old-images", inner)] {
            assert_eq!(with(name, text, &[]), Ok(()));
            let told = with(name, text, &["ImagePolicyWebhook".to_owned()]).expect_err("no such file");
            assert!(told.starts_with("admission-control-config-file: "), "{told}");
            assert!(told.contains("all.yaml: plugin ImagePolicyWebhook: "), "{told}");
            assert!(told.contains(&format!("-{name}/none: No such file")), "beside the file that names it: {told}");
        }
    }
}
