//! What containers of a manifest may mount, and what variables and files may show of the pod. See [`super::rules`], which
//! calls this.
//!
//! Followed: `ValidateVolumeMounts`, `ValidateVolumeDevices`, `validateObjectFieldSelector`,
//! `validateContainerResourceFieldSelector`, `ValidateEnvFrom`.

use serde_json::Value;

use super::rules::{list, qualified_name, text};

/// Fields of a pod that its variables may show.
const OF_VARIABLES: [&str; 9] = [
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];
/// Those that files may show.
const OF_FILES: [&str; 5] =
    ["metadata.annotations", "metadata.labels", "metadata.name", "metadata.namespace", "metadata.uid"];
/// Those that have a name and can be shown nowhere.
const OF_NOBODY: [&str; 3] = ["spec.restartPolicy", "spec.schedulerName", "status.phase"];

const RESOURCES: [&str; 6] = [
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
];

/// What is wrong with the spec, each entry with its path.
pub fn broken(spec: &Value, found: &mut Vec<String>) {
    for kind in ["initContainers", "containers"] {
        for (i, container) in list(spec, kind).iter().enumerate() {
            let path = format!("spec.{kind}[{i}]");
            mounts(&path, container, found);
            devices(&path, container, spec, found);
            variables(&path, container, spec, found);
        }
    }
    for (i, volume) in list(spec, "volumes").iter().enumerate() {
        let path = format!("spec.volumes[{i}]");
        files(&format!("{path}.downwardAPI"), &volume["downwardAPI"], found);
        for (j, source) in list(&volume["projected"], "sources").iter().enumerate() {
            let path = format!("{path}.projected.sources[{j}]");
            files(&format!("{path}.downwardAPI"), &source["downwardAPI"], found);
            if source.as_object().is_some_and(|source| source.values().filter(|part| part.is_object()).count() > 1) {
                found.push(format!("{path}: Forbidden: may not specify more than 1 volume type per source"));
            }
        }
    }
}

fn is_given(value: &Value, member: &str) -> bool {
    value.get(member).is_some_and(|member| !member.is_null())
}

/// Upstream names the list here, not the mount.
fn mounts(path: &str, container: &Value, found: &mut Vec<String>) {
    let at = format!("{path}.volumeMounts.recursiveReadOnly");
    for mount in list(container, "volumeMounts") {
        if !matches!(text(mount, "recursiveReadOnly"), "Enabled" | "IfPossible") {
            continue;
        }
        if mount["readOnly"] != true {
            found.push(format!("{at}: Forbidden: may only be specified when readOnly is true"));
        }
        if !matches!(text(mount, "mountPropagation"), "" | "None") {
            let why = "may only be specified when mountPropagation is None or not specified";
            found.push(format!("{at}: Forbidden: {why}"));
        }
    }
}

fn devices(path: &str, container: &Value, spec: &Value, found: &mut Vec<String>) {
    for (i, device) in list(container, "volumeDevices").iter().enumerate() {
        let (name, at) = (text(device, "name"), format!("{path}.volumeDevices[{i}]"));
        if name.is_empty() {
            found.push(format!("{at}.name: Required value"));
        }
        match list(spec, "volumes").iter().find(|volume| text(volume, "name") == name) {
            None => found.push(format!("{at}.name: Not found: {name:?}")),
            Some(volume) if !is_given(volume, "persistentVolumeClaim") && !is_given(volume, "ephemeral") => {
                let why = "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode";
                found.push(format!("{at}.name: Invalid value: {name:?}: {why}"));
            }
            Some(_) => {}
        }
        if text(device, "devicePath").is_empty() {
            found.push(format!("{at}.devicePath: Required value"));
        }
    }
}

fn variables(path: &str, container: &Value, spec: &Value, found: &mut Vec<String>) {
    for (i, variable) in list(container, "env").iter().enumerate() {
        let (from, at) = (&variable["valueFrom"], format!("{path}.env[{i}].valueFrom"));
        field(&format!("{at}.fieldRef"), &from["fieldRef"], &OF_VARIABLES, found);
        resource(&format!("{at}.resourceFieldRef"), &from["resourceFieldRef"], found);
        let volume = text(&from["fileKeyRef"], "volumeName");
        if !volume.is_empty() && !list(spec, "volumes").iter().any(|known| text(known, "name") == volume) {
            found.push(format!("{at}.fileKeyRef.volumeName: Not found: {volume:?}"));
        }
    }
    for source in list(container, "envFrom") {
        let given = ["configMapRef", "secretRef"].iter().filter(|name| is_given(source, name)).count();
        if given != 1 {
            let why = match given {
                0 => "must specify one of: `configMapRef` or `secretRef`",
                _ => "may not have more than one field specified at a time",
            };
            found.push(format!("{path}.envFrom: Invalid value: \"\": {why}"));
        }
    }
}

/// Upstream names the list here, not the file.
fn files(path: &str, volume: &Value, found: &mut Vec<String>) {
    for file in list(volume, "items") {
        field(&format!("{path}.fieldRef"), &file["fieldRef"], &OF_FILES, found);
        let at = format!("{path}.resourceFieldRef");
        match (is_given(file, "fieldRef"), is_given(file, "resourceFieldRef")) {
            (true, true) => {
                let why = "fieldRef and resourceFieldRef can not be specified simultaneously";
                found.push(format!("{path}: Invalid value: \"resource\": {why}"));
            }
            (false, false) => {
                found.push(format!("{path}: Required value: one of fieldRef and resourceFieldRef is required"));
            }
            (false, true) if text(&file["resourceFieldRef"], "containerName").is_empty() => {
                found.push(format!("{at}.containerName: Required value"));
            }
            (false, true) => resource(&at, &file["resourceFieldRef"], found),
            (true, false) => {}
        }
    }
}

/// A field of the pod by its path; that there must be one is told elsewhere.
fn field(at: &str, reference: &Value, allowed: &[&str], found: &mut Vec<String>) {
    let path = match text(reference, "fieldPath") {
        "" => return,
        // What it was called once.
        "spec.host" => "spec.nodeName",
        path => path,
    };
    let mut bad = |why: String| found.push(format!("{at}.fieldPath: Invalid value: {path:?}: {why}"));
    let version = text(reference, "apiVersion");
    if !matches!(version, "" | "v1") {
        return bad(format!("error converting fieldPath: unsupported pod version: {version}"));
    }
    let subscripted = path.strip_suffix("']").and_then(|path| path.split_once("['")).filter(|(of, _)| !of.is_empty());
    let key = match subscripted {
        Some(("metadata.annotations", key)) => key.to_lowercase(),
        Some(("metadata.labels", key)) => key.to_owned(),
        Some(_) => return bad(format!("error converting fieldPath: field label does not support subscript: {path}")),
        None if allowed.contains(&path) => return,
        None if [&OF_VARIABLES[..], &OF_FILES, &OF_NOBODY].iter().any(|known| known.contains(&path)) => {
            let known: Vec<String> = allowed.iter().map(|path| format!("{path:?}")).collect();
            let known = known.join(", ");
            return found.push(format!("{at}.fieldPath: Unsupported value: {path:?}: supported values: {known}"));
        }
        None => return bad(format!("error converting fieldPath: field label not supported: {path}")),
    };
    if let Some(why) = qualified_name(&key) {
        found.push(format!("{at}: Invalid value: {key:?}: {why}"));
    }
}

fn resource(at: &str, reference: &Value, found: &mut Vec<String>) {
    let name = text(reference, "resource");
    let huge = ["limits.hugepages-", "requests.hugepages-"].iter().any(|prefix| name.starts_with(prefix));
    if !name.is_empty() && !huge && !RESOURCES.contains(&name) {
        let known: Vec<String> = RESOURCES.iter().map(|known| format!("{known:?}")).collect();
        let known = known.join(", ");
        found.push(format!("{at}.resource: Unsupported value: {name:?}: supported values: {known}"));
    }
    // A number in YAML is an amount as well.
    let divisor = match &reference["divisor"] {
        Value::String(divisor) => divisor.clone(),
        Value::Number(divisor) => divisor.to_string(),
        _ => return,
    };
    let mut bad = |units: &str, of: &str| {
        found.push(format!(
            "{at}.divisor: Invalid value: {name:?}: only divisor's values {units} are supported with the {of} resource"
        ));
    };
    const BYTES: &str = "1, 1k, 1M, 1G, 1T, 1P, 1E, 1Ki, 1Mi, 1Gi, 1Ti, 1Pi, 1Ei";
    let is_bytes = BYTES.split(", ").any(|unit| unit == divisor);
    match name.split_once('.').map_or("", |(_, of)| of) {
        _ if matches!(&*divisor, "" | "0") => {}
        "cpu" if !matches!(&*divisor, "1" | "1m") => bad("1m and 1", "cpu"),
        "memory" if !is_bytes => bad(BYTES, "memory"),
        "ephemeral-storage" if !is_bytes => bad(BYTES, "local ephemeral storage"),
        _ if huge && !is_bytes => bad(BYTES, "hugepages"),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::super::rules;

    fn told(container: &str, volume: &str) -> Vec<String> {
        let text = format!(
            "metadata: {{name: a}}\nspec: {{containers: [{{name: c, image: x, {container}}}], volumes: [{{name: v, {volume}}}]}}\n"
        );
        rules::broken(&proto::yaml::parse(text.as_bytes()).unwrap())
    }

    fn of_field(path: &str) -> String {
        told(&format!("env: [{{name: A, valueFrom: {{fieldRef: {{fieldPath: \"{path}\"}}}}}}]"), "").join("; ")
    }

    #[test]
    fn what_can_be_mounted_and_shown_is_fine() {
        let mount = "volumeMounts: [{name: v, mountPath: /a, readOnly: true, recursiveReadOnly: Enabled}, \
                     {name: v, mountPath: /b, recursiveReadOnly: Disabled}]";
        assert_eq!(told(mount, ""), [""; 0]);
        for path in ["status.podIPs", "spec.host", "metadata.labels['a/b']", "metadata.annotations['A']"] {
            assert_eq!(of_field(path), "");
        }
        let resource = "resource: limits.memory, divisor: 1Mi";
        let file = format!(
            "downwardAPI: {{items: [{{path: p, resourceFieldRef: {{containerName: c, {resource}}}}}, \
                            {{path: q, fieldRef: {{fieldPath: metadata.labels}}}}]}}"
        );
        let variable = format!(
            "env: [{{name: A, valueFrom: {{resourceFieldRef: {{{resource}}}}}}}, {{name: B, \
                                valueFrom: {{resourceFieldRef: {{resource: requests.hugepages-2Mi, divisor: 1}}}}}}]"
        );
        assert_eq!(told(&variable, &file), [""; 0]);
    }

    /// Such pods ran, or waited with containers that can never be made.
    #[test]
    fn what_cannot_be_mounted_or_shown_is_told() {
        let mount = |more: &str| format!("volumeMounts: [{{name: v, mountPath: /a, {more}}}]");
        let recursive = "spec.containers[0].volumeMounts.recursiveReadOnly: Forbidden: may only be specified when";
        assert_eq!(told(&mount("recursiveReadOnly: Enabled"), ""), [format!("{recursive} readOnly is true")]);
        assert_eq!(
            told(&mount("readOnly: true, recursiveReadOnly: IfPossible, mountPropagation: HostToContainer"), ""),
            [format!("{recursive} mountPropagation is None or not specified")]
        );
        let block = "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode";
        assert_eq!(
            told("volumeDevices: [{name: v, devicePath: /a}]", "hostPath: {path: /a}"),
            [format!("spec.containers[0].volumeDevices[0].name: Invalid value: \"v\": {block}")]
        );
        let at = "spec.containers[0].env[0].valueFrom.fieldRef.fieldPath: ";
        let converting = "error converting fieldPath: field label";
        assert_eq!(of_field("spec.x"), format!("{at}Invalid value: \"spec.x\": {converting} not supported: spec.x"));
        assert_eq!(
            of_field("spec.x['a']"),
            format!("{at}Invalid value: \"spec.x['a']\": {converting} does not support subscript: spec.x['a']")
        );
        let phase = of_field("status.phase");
        assert!(
            phase.starts_with(&format!("{at}Unsupported value: \"status.phase\": supported values: \"metadata.name\""))
        );
        let resource = |more: &str| {
            told(&format!("env: [{{name: A, valueFrom: {{resourceFieldRef: {{{more}}}}}}}]"), "").join("; ")
        };
        assert!(resource("resource: limits.gpu").contains(".resource: Unsupported value: \"limits.gpu\": supported"));
        assert!(resource("resource: limits.cpu, divisor: 1k").ends_with(
            ".divisor: Invalid value: \"limits.cpu\": only divisor's values 1m and 1 are supported with the cpu resource"
        ));
        assert_eq!(
            told("envFrom: [{}]", ""),
            ["spec.containers[0].envFrom: Invalid value: \"\": must specify one of: `configMapRef` or `secretRef`"]
        );
        assert_eq!(
            told("", "downwardAPI: {items: [{path: p}]}"),
            ["spec.volumes[0].downwardAPI: Required value: one of fieldRef and resourceFieldRef is required"]
        );
        let two = "projected: {sources: [{downwardAPI: {}, configMap: {name: a}}]}";
        assert_eq!(
            told("", two),
            ["spec.volumes[0].projected.sources[0]: Forbidden: may not specify more than 1 volume type per source"]
        );
    }
}
