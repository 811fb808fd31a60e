//! Images that differ from one that is there: its layers, and one more with a file of random bytes.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

/// Makes an archive of an image like that of another OCI archive, under a name of its own and `bytes` larger. `folder` is
/// the image's alone.
///
/// # Errors
/// When the other archive is none.
pub fn variant(of: &Path, folder: &Path, name: &str, bytes: usize) -> Result<PathBuf> {
    let (layout, added, archive) = (folder.join("layout"), folder.join("added"), folder.join("image.tar"));
    std::fs::create_dir_all(&layout)?;
    std::fs::create_dir_all(&added)?;
    tar(&[Path::new("-C"), &layout, Path::new("-xf"), of])?;
    let mut file = std::fs::File::create(added.join("random"))?;
    let random = std::io::Read::take(std::fs::File::open("/dev/urandom")?, u64::try_from(bytes)?);
    std::io::copy(&mut std::io::BufReader::new(random), &mut file)?;
    let layer = folder.join("layer.tar");
    tar(&[Path::new("-C"), &added, Path::new("-cf"), &layer, Path::new(".")])?;
    let (layer_digest, layer_size) = put(&layout, &std::fs::read(&layer)?)?;

    let mut index = read(&layout.join("index.json"))?;
    let mut manifest = read(&blob(&layout, &index["manifests"][0]["digest"])?)?;
    let mut config = read(&blob(&layout, &manifest["config"]["digest"])?)?;
    list(&mut config["rootfs"]["diff_ids"])?.push(json!(layer_digest));
    let (digest, size) = put(&layout, config.to_string().as_bytes())?;
    (manifest["config"]["digest"], manifest["config"]["size"]) = (json!(digest), json!(size));
    let media = "application/vnd.oci.image.layer.v1.tar";
    list(&mut manifest["layers"])?.push(json!({"mediaType": media, "digest": layer_digest, "size": layer_size}));
    let (digest, size) = put(&layout, manifest.to_string().as_bytes())?;
    let entry = &mut index["manifests"][0];
    (entry["digest"], entry["size"]) = (json!(digest), json!(size));
    entry["annotations"] = json!({"io.containerd.image.name": name,
        "org.opencontainers.image.ref.name": name.rsplit(':').next()});
    std::fs::write(layout.join("index.json"), index.to_string())?;
    tar(&[Path::new("-C"), &layout, Path::new("-cf"), &archive, Path::new(".")])?;
    Ok(archive)
}

fn tar(arguments: &[&Path]) -> Result<()> {
    ensure!(Command::new("tar").args(arguments).status()?.success(), "tar {arguments:?}");
    Ok(())
}

fn read(path: &Path) -> Result<Value> {
    Ok(serde_json::from_slice(&std::fs::read(path)?)?)
}

fn list(value: &mut Value) -> Result<&mut Vec<Value>> {
    value.as_array_mut().context("a list in the image")
}

fn blob(layout: &Path, digest: &Value) -> Result<PathBuf> {
    let hex = digest.as_str().and_then(|digest| digest.strip_prefix("sha256:")).context("a digest")?;
    Ok(layout.join("blobs/sha256").join(hex))
}

/// Puts something among the blobs; its digest and size.
fn put(layout: &Path, content: &[u8]) -> Result<(String, usize)> {
    let path = layout.join("new");
    std::fs::write(&path, content)?;
    let output = Command::new("sha256sum").arg(&path).output()?;
    let text = String::from_utf8(output.stdout)?;
    let hex = text.split(' ').next().filter(|hex| hex.len() == 64).context("a digest of sha256sum")?;
    std::fs::rename(&path, layout.join("blobs/sha256").join(hex))?;
    Ok((format!("sha256:{hex}"), content.len()))
}
