//! Where the values of a wrong type stand. The decoder stops at the first one, as Go's does, and names no line.

use std::path::Path;

use serde_json::{Map, Value};

use super::Sources;
use super::file::{self, FileTree};
use super::load::drop_ins;

/// `FILE:LINE: FIELD: REASON` for every field whose value has a wrong type, in the order of files and fields.
///
/// Files that cannot be read or are no YAML are left out: the error of loading them says where.
pub fn wrong_types(sources: &Sources) -> Vec<String> {
    let below = sources.drop_ins.iter().flat_map(|folder| drop_ins(folder, folder).unwrap_or_default());
    let files = sources.file.clone().into_iter().chain(below);
    files.flat_map(|path| file::read(&path).map_or_else(|_| Vec::new(), |file| in_file(&path, &file))).collect()
}

fn in_file(path: &Path, file: &FileTree) -> Vec<String> {
    let fields = file.tree.as_object().into_iter().flatten();
    let wrong = fields.filter_map(|(name, value)| {
        let alone = Value::Object(Map::from_iter([(name.clone(), value.clone())]));
        let reason = file::conform(&alone).err()?;
        let field = field_of(&reason).unwrap_or(name);
        let line = file::line_of(&file.text, field).or_else(|| file::line_of(&file.text, name)).unwrap_or(1);
        Some((line, format!("{}:{line}: {field}: {reason}", path.display())))
    });
    let mut wrong: Vec<_> = wrong.collect();
    wrong.sort_by_key(|(line, _)| *line);
    wrong.into_iter().map(|(_, text)| text).collect()
}

/// The dotted path in `... into Go struct field Holder.some.path of type ...`.
fn field_of(reason: &str) -> Option<&str> {
    let (path, _) = reason.split_once("struct field ")?.1.split_once(" of type")?;
    path.split_once('.').map(|(_, path)| path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_wrong_type_is_told_with_its_line() {
        let dir = std::env::temp_dir().join(format!("located-{}", std::process::id()));
        std::fs::create_dir_all(dir.join("d")).expect("creates");
        let head = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";
        let main = format!("{head}authentication:\n  webhook:\n    enabled: 3\nmaxPods: many\nport: 1\n");
        std::fs::write(dir.join("main.yaml"), main).expect("writes");
        std::fs::write(dir.join("d/1.conf"), format!("{head}port: [1]\nsyncFrequency: 5\n")).expect("writes");
        let sources =
            Sources { file: Some(dir.join("main.yaml")), drop_ins: Some(dir.join("d")), ..Sources::default() };
        let found: Vec<_> =
            wrong_types(&sources).iter().map(|l| l.replace(&format!("{}/", dir.display()), "")).collect();
        std::fs::remove_dir_all(&dir).expect("removes");
        let starts = [
            "main.yaml:5: authentication.webhook.enabled: ",
            "main.yaml:6: maxPods: ",
            "d/1.conf:3: port: ",
            "d/1.conf:4: syncFrequency: ",
        ];
        assert_eq!(found.len(), starts.len(), "{found:?}");
        for (line, start) in found.iter().zip(starts) {
            assert!(line.starts_with(start), "{found:?}");
        }
        assert!(found[1].contains("cannot unmarshal string into Go struct field"), "{found:?}");
    }
}
