//! `apiserver-lite check`.

use std::path::Path;

use super::archive::Archive;
use super::flags::CheckArgs;
use super::{AdminError, objects, say};
use crate::store::Image;

pub(super) fn check(args: &CheckArgs) -> Result<(), AdminError> {
    match &args.file {
        Some(path) => {
            let archive = Archive::read(path)?;
            let image = Image::of_snapshot(path, &archive.snapshot)?;
            told(path, &image)?;
            let keys: Vec<&str> = archive.keys.keys().map(String::as_str).collect();
            say(&format!("made {}, with the keys {}", archive.made, keys.join(" ")))
        }
        None => {
            let folder = args.folders.store();
            told(&folder, &Image::read(&folder)?)
        }
    }
}

fn told(path: &Path, image: &Image) -> Result<(), AdminError> {
    let broken = image.problems();
    if !broken.is_empty() {
        broken.iter().for_each(|line| eprintln!("{line}"));
        return Err(AdminError::BadObjects { count: broken.len(), of: image.len() });
    }
    for (resource, count) in image.counts() {
        say(&format!("{count:>8} {resource}"))?;
    }
    if image.unfinished > 0 {
        say(&format!("{} bytes of a write that was never acknowledged", image.unfinished))?;
    }
    say(&format!(
        "{}: all checksums are right; {} at revision {}",
        path.display(),
        objects(image.len()),
        image.revision
    ))
}
