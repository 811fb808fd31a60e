//! Where other file systems are mounted below a folder. Whoever counts files keeps out of them, and does not even ask
//! whose they are: one that hangs would hold him.

use std::collections::{BTreeMap, HashSet};
use std::ops::Bound;
use std::path::{Path, PathBuf};

use crate::volumes::mount_table;

/// What was mounted at some moment: the device number of each place.
#[derive(Debug, Default)]
pub(super) struct Mounted(BTreeMap<PathBuf, Vec<u8>>);

impl Mounted {
    /// What is mounted now. A table that cannot be read shows nothing: who counts finds other devices by himself then.
    pub fn now() -> Self {
        let read = mount_table::devices(Path::new(mount_table::TABLE));
        Mounted(read.unwrap_or_else(|error| {
            tracing::debug!(error, "nobody knows which folders are other file systems");
            BTreeMap::new()
        }))
    }

    /// The places below a folder, spelled as it is, where another file system than its own is mounted.
    pub fn others_below(&self, folder: &Path) -> HashSet<PathBuf> {
        let real = mount_table::real_place(folder);
        let below = self.0.range::<Path, _>((Bound::Excluded(real.as_path()), Bound::Unbounded));
        let mut below = below.take_while(|(place, _)| place.starts_with(&real)).peekable();
        if below.peek().is_none() {
            return HashSet::new();
        }
        let own = real.ancestors().find_map(|above| self.0.get(above));
        let others = below.filter(|(_, device)| Some(*device) != own);
        others.filter_map(|(place, _)| Some(folder.join(place.strip_prefix(&real).ok()?))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_are_what_has_another_device_than_the_folder() {
        let of = |(place, device): (&str, &str)| (PathBuf::from(place), device.as_bytes().to_vec());
        let table = [("/", "8:1"), ("/r/v", "8:1"), ("/r/v/nfs", "0:44"), ("/r/v/a/again", "8:1"), ("/r/v2", "0:45")];
        let mounted = Mounted(table.map(of).into());
        let below = |folder: &str| mounted.others_below(Path::new(folder));
        assert_eq!(below("/r/v"), [PathBuf::from("/r/v/nfs")].into());
        assert_eq!(below("/r").len(), 2);
        assert!(below("/r/v/a").is_empty() && below("/r/v/nfs").is_empty() && below("/r/w").is_empty());
    }
}
