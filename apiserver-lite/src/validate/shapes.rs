//! What upstream calls the fields of values that several checks show: its types for them have no names in JSON.

use crate::go_value::{Field, Shape};

const TEXT: Shape = Shape::Pointer(&Shape::Text);
const FLAG: Shape = Shape::Pointer(&Shape::Flag);
const NUMBER: Shape = Shape::Pointer(&Shape::Number);
const TEXTS: Shape = Shape::List(&Shape::Text);

const CAPABILITIES: Shape = Shape::Struct(&[Field("Add", "add", TEXTS), Field("Drop", "drop", TEXTS)]);
const SELINUX: Shape = Shape::Struct(&[
    Field("User", "user", Shape::Text),
    Field("Role", "role", Shape::Text),
    Field("Type", "type", Shape::Text),
    Field("Level", "level", Shape::Text),
]);
const WINDOWS: Shape = Shape::Struct(&[
    Field("GMSACredentialSpecName", "gmsaCredentialSpecName", TEXT),
    Field("GMSACredentialSpec", "gmsaCredentialSpec", TEXT),
    Field("RunAsUserName", "runAsUserName", TEXT),
    Field("HostProcess", "hostProcess", FLAG),
]);
pub const PROFILE: Shape =
    Shape::Struct(&[Field("Type", "type", Shape::Text), Field("LocalhostProfile", "localhostProfile", TEXT)]);
/// Of a container.
pub const SECURITY_CONTEXT: Shape = Shape::Struct(&[
    Field("Capabilities", "capabilities", Shape::Pointer(&CAPABILITIES)),
    Field("Privileged", "privileged", FLAG),
    Field("SELinuxOptions", "seLinuxOptions", Shape::Pointer(&SELINUX)),
    Field("WindowsOptions", "windowsOptions", Shape::Pointer(&WINDOWS)),
    Field("RunAsUser", "runAsUser", NUMBER),
    Field("RunAsGroup", "runAsGroup", NUMBER),
    Field("RunAsNonRoot", "runAsNonRoot", FLAG),
    Field("ReadOnlyRootFilesystem", "readOnlyRootFilesystem", FLAG),
    Field("AllowPrivilegeEscalation", "allowPrivilegeEscalation", FLAG),
    Field("ProcMount", "procMount", TEXT),
    Field("SeccompProfile", "seccompProfile", Shape::Pointer(&PROFILE)),
    Field("AppArmorProfile", "appArmorProfile", Shape::Pointer(&PROFILE)),
]);

const NODE_REQUIREMENT: Shape = Shape::Struct(&[
    Field("Key", "key", Shape::Text),
    Field("Operator", "operator", Shape::Text),
    Field("Values", "values", TEXTS),
]);
pub const NODE_TERM: Shape = Shape::Struct(&[
    Field("MatchExpressions", "matchExpressions", Shape::List(&NODE_REQUIREMENT)),
    Field("MatchFields", "matchFields", Shape::List(&NODE_REQUIREMENT)),
]);
pub const NODE_TERMS: Shape = Shape::List(&NODE_TERM);
pub const NODE_SELECTOR: Shape = Shape::Struct(&[Field("NodeSelectorTerms", "nodeSelectorTerms", NODE_TERMS)]);
pub const VOLUME_AFFINITY: Shape =
    Shape::Pointer(&Shape::Struct(&[Field("Required", "required", Shape::Pointer(&NODE_SELECTOR))]));

pub const TOLERATION: Shape = Shape::Struct(&[
    Field("Key", "key", Shape::Text),
    Field("Operator", "operator", Shape::Text),
    Field("Value", "value", Shape::Text),
    Field("Effect", "effect", Shape::Text),
    Field("TolerationSeconds", "tolerationSeconds", NUMBER),
]);

/// An address of a pod or of its host.
pub const ADDRESS: Shape = Shape::Struct(&[Field("IP", "ip", Shape::Text)]);

pub const OBJECT: Shape = Shape::Struct(&[
    Field("Kind", "kind", Shape::Text),
    Field("Namespace", "namespace", Shape::Text),
    Field("Name", "name", Shape::Text),
    Field("UID", "uid", Shape::Text),
    Field("APIVersion", "apiVersion", Shape::Text),
    Field("ResourceVersion", "resourceVersion", Shape::Text),
    Field("FieldPath", "fieldPath", Shape::Text),
]);
pub const EVENT_SOURCE: Shape =
    Shape::Struct(&[Field("Component", "component", Shape::Text), Field("Host", "host", Shape::Text)]);

pub const TRUST_BUNDLE: Shape = Shape::Struct(&[
    Field("Name", "name", TEXT),
    Field("SignerName", "signerName", TEXT),
    Field("LabelSelector", "labelSelector", Shape::Any),
    Field("Optional", "optional", FLAG),
    Field("Path", "path", Shape::Text),
]);

const EXIT_CODES: Shape = Shape::Struct(&[
    Field("ContainerName", "containerName", TEXT),
    Field("Operator", "operator", Shape::Text),
    Field("Values", "values", Shape::List(&Shape::Number)),
]);
const POD_CONDITION: Shape =
    Shape::Struct(&[Field("Type", "type", Shape::Text), Field("Status", "status", Shape::Text)]);
const FAILURE_RULE: Shape = Shape::Struct(&[
    Field("Action", "action", Shape::Text),
    Field("OnExitCodes", "onExitCodes", Shape::Pointer(&EXIT_CODES)),
    Field("OnPodConditions", "onPodConditions", Shape::List(&POD_CONDITION)),
]);
/// Of a job.
pub const FAILURE_POLICY: Shape =
    Shape::Pointer(&Shape::Struct(&[Field("Rules", "rules", Shape::List(&FAILURE_RULE))]));
