//! A copy of a whole store at one revision: read from its files without opening it, checked, and written elsewhere.
//!
//! The files of a running server can be read: segments only grow, and a file that is removed meanwhile is covered by a
//! newer snapshot, so the reading begins again. The copy holds everything that was acknowledged before it began.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

use super::disk::{self, Files, OpenError};
use super::frame::Change;
use super::object::{Key, ObjectRef, ResourceId};

/// A running server replaces its files every 16 MiB of writes: more than twice within one reading is not expected.
const ATTEMPTS: usize = 5;

/// The objects of a store at one revision.
#[derive(Debug, Default)]
pub struct Image {
    /// Revision of the newest write.
    pub revision: u64,
    /// Bytes of a write at the end of the log that was never acknowledged, or is just being made.
    pub unfinished: u64,
    objects: BTreeMap<ResourceId, BTreeMap<Key, ObjectRef>>,
}

impl Image {
    /// Reads a store's folder and changes nothing in it; a server may be running on it.
    ///
    /// # Errors
    /// When there is no store, it cannot be read, or a checksum is wrong.
    pub fn read(folder: &Path) -> Result<Self, OpenError> {
        let mut left = ATTEMPTS;
        loop {
            left -= 1;
            match Image::read_once(folder) {
                // Replaced by a snapshot between the listing and the reading.
                Err(OpenError::Io { source, path })
                    if left > 0 && source.kind() == ErrorKind::NotFound && path != folder => {}
                // Or while the folder was listed.
                Err(OpenError::Missing(_)) if left > 0 => {}
                read => return read,
            }
        }
    }

    fn read_once(folder: &Path) -> Result<Self, OpenError> {
        let files = Files::of(folder)?;
        if files.is_empty() {
            let source = std::io::Error::new(ErrorKind::InvalidData, "there is no store in this folder");
            return Err(OpenError::Io { path: folder.into(), source });
        }
        // etcd starts at 1, and so does a store without a write.
        let mut image = Image { revision: 1, ..Image::default() };
        let tail = files.replay(folder, &mut |change| image.take(change))?;
        image.unfinished = tail.torn;
        Ok(image)
    }

    /// Reads the bytes that [`Image::snapshot`] gives; `path` is for errors.
    ///
    /// # Errors
    /// When they are not whole or a checksum is wrong.
    pub fn of_snapshot(path: &Path, bytes: &[u8]) -> Result<Self, OpenError> {
        let mut image = Image { revision: 1, ..Image::default() };
        disk::replay_snapshot(path, bytes, &mut |change| image.take(change))?;
        Ok(image)
    }

    fn take(&mut self, change: Change) {
        match change {
            Change::Put(resource, object) => {
                self.revision = self.revision.max(object.revision);
                self.objects.entry(resource).or_default().insert(object.key.clone(), Arc::new(object));
            }
            Change::Delete(resource, key, at) => {
                self.revision = self.revision.max(at);
                if let Some(objects) = self.objects.get_mut(&resource) {
                    objects.remove(&key);
                }
            }
            Change::Revision(at) => self.revision = self.revision.max(at),
            Change::End(_) => {}
        }
    }

    /// Names of resources and how many objects each has.
    pub fn counts(&self) -> impl Iterator<Item = (&str, usize)> {
        self.objects.iter().filter(|(_, objects)| !objects.is_empty()).map(|(id, objects)| (&*id.0, objects.len()))
    }

    /// Number of objects.
    pub fn len(&self) -> usize {
        self.objects.values().map(BTreeMap::len).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What is wrong with objects though their checksums are right, one line each: what does not parse, or says another
    /// name or version than it is stored under.
    pub fn problems(&self) -> Vec<String> {
        let mut out = Vec::new();
        for (id, object) in self.objects.iter().flat_map(|(id, objects)| objects.values().map(move |o| (id, o))) {
            let name = format!("{} {}/{}", id.0, object.key.namespace, object.key.name);
            let Ok(value) = proto::json::parse_at_rest(&object.json.bytes()) else {
                out.push(format!("{name}: not JSON"));
                continue;
            };
            let metadata = &value["metadata"];
            let text = |key: &str| metadata[key].as_str().unwrap_or_default().to_owned();
            if text("name") != *object.key.name || text("namespace") != *object.key.namespace {
                out.push(format!("{name}: says that it is {}/{}", text("namespace"), text("name")));
            }
            if text("resourceVersion") != object.revision.to_string() || object.revision > self.revision {
                out.push(format!("{name}: version {:?} at {}", text("resourceVersion"), object.revision));
            }
        }
        out
    }

    fn objects(&self) -> impl Iterator<Item = (ResourceId, ObjectRef)> {
        self.objects.iter().flat_map(|(id, objects)| objects.values().map(|o| (id.clone(), o.clone())))
    }

    /// The image as bytes with checksums.
    pub fn snapshot(&self) -> Vec<u8> {
        let mut out = Vec::new();
        // A vector takes everything.
        let _ = disk::snapshot_to(&mut out, self.revision, self.objects());
        out
    }

    /// Makes a store of it in a new folder, as if at `revision`, which is not below the image's own.
    ///
    /// # Errors
    /// When the folder cannot be written. What was begun is left there.
    pub fn write(&self, folder: &Path, revision: u64) -> std::io::Result<()> {
        disk::found(folder, revision.max(self.revision), self.objects())
    }
}
