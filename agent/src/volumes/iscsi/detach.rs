//! Letting go of disks that no pod has any more. In doubt a disk and its session stay: a later try finds them again.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::record::{self, Record};
use super::{Initiator, raw, sysfs};
use crate::volumes::mount_table;
use crate::volumes::turns::blocking;

/// For all disks together; one that hangs must not keep the others from being looked at again.
const PATIENCE: Duration = Duration::from_secs(60);

impl Initiator {
    /// Lets go of what no pod has any more, each disk for itself. `true` when all went that could go, `false` when
    /// another try is worth it: why is logged.
    pub async fn clear(self: &Arc<Self>) -> bool {
        let all = self.all();
        let staged = match blocking(move || record::staged_below(&all)).await {
            Ok(staged) => staged,
            Err(error) => {
                tracing::warn!(error, "cannot look for iSCSI disks that no pod has");
                return false;
            }
        };
        let work = |staged: PathBuf| {
            let this = self.clone();
            // It goes on where nobody waits for it, for half a logout helps nobody.
            tokio::spawn(async move {
                let done = this.let_go(&staged).await;
                done.inspect_err(|error| tracing::warn!(error, disk = %staged.display(), "an iSCSI disk stays"))
            })
        };
        let works: Vec<_> = staged.into_iter().map(work).collect();
        let until = tokio::time::Instant::now() + PATIENCE;
        let mut done = true;
        for work in works {
            done &= matches!(tokio::time::timeout_at(until, work).await, Ok(Ok(Ok(true))));
        }
        done
    }

    /// Lets go of one disk, unless a pod has it. `false` while somebody works on it.
    ///
    /// # Errors
    /// Why it stays.
    pub(super) async fn let_go(&self, staged: &Path) -> Result<bool, String> {
        let Some(_turn) = self.disks.try_take(staged) else { return Ok(false) };
        let (table, place, pods) = (self.table.clone(), staged.to_owned(), self.root_dir.join("pods"));
        let raw = staged.starts_with(self.raw());
        let record = blocking(move || {
            let had = match raw {
                true => raw::still_had(&place, &pods)?,
                false => mount_table::is_also_below(&table, &place, &pods)?,
            };
            if had {
                return Ok(None);
            }
            mount_table::unmount_strictly(&place)?;
            if mount_table::is_mount_point(&place)? {
                return Err(format!("{} is still mounted", place.display()));
            }
            record::read(&place).map(Some)
        });
        let Some(record) = record.await? else { return Ok(true) };
        // Until the folder is gone, so that of two disks that go at the same time the later one ends the session.
        let _database = self.database.lock().await;
        if let Some(record) = record {
            self.detach(staged, &record).await?;
        }
        let place = staged.to_owned();
        blocking(move || record::remove(&place)).await.map(|()| true)
    }

    /// Takes the disk from the kernel, and ends the sessions of its target unless another disk of that is in use: all of
    /// them, or none.
    async fn detach(&self, staged: &Path, record: &Record) -> Result<(), String> {
        let all = self.all();
        let known = blocking(move || record::staged_below(&all)).await?;
        let others: Vec<String> = known
            .iter()
            .filter(|other| *other != staged)
            .filter_map(|other| Some(other.file_name()?.to_string_lossy().into_owned()))
            .collect();
        let target = format!("-{}-lun-", record.iqn);
        let own = format!("{target}{}", record.lun);
        if !others.iter().any(|name| name.ends_with(&own)) {
            self.drop_lun(record).await?;
        }
        if others.iter().any(|name| name.contains(&target)) {
            return Ok(());
        }
        let (sys, dev, iqn) = (self.sys.clone(), self.dev.clone(), record.iqn.clone());
        let in_use = blocking(move || {
            let sessions = sysfs::sessions(&sys, &iqn)?;
            for device in sessions.iter().map(sysfs::luns).collect::<Result<Vec<_>, _>>()?.into_iter().flatten() {
                for name in device.devices {
                    if !sysfs::is_idle(&dev.join(name))? {
                        return Ok(None);
                    }
                }
            }
            Ok(Some(sessions))
        });
        let Some(sessions) = in_use.await? else {
            tracing::info!(target = record.iqn, "the session stays: something else on this machine uses it");
            return Ok(());
        };
        if !sessions.is_empty() {
            self.log_out(record).await?;
        }
        if record.owns_interface()
            && let Err(error) = self.admin(&["-m", "iface", "-I", &record.iface, "-o", "delete"]).await
        {
            tracing::warn!(error, interface = record.iface, "iscsiadm did not remove an interface");
        }
        Ok(())
    }

    async fn log_out(&self, record: &Record) -> Result<(), String> {
        let mut failed = Ok(());
        for portal in &record.portals {
            let node = ["-m", "node", "-p", portal, "-T", &record.iqn, "-I", &record.iface];
            match self.admin(&[&node[..], &["--logout"]].concat()).await {
                // 21: there is no such session.
                Err(why) if !why.ends_with("(exit status 21)") => {
                    failed = failed.and(Err(format!("iscsi: failed to detach disk: {why}")));
                    continue;
                }
                _ => {}
            }
            if let Err(error) = self.admin(&[&node[..], &["-o", "delete"]].concat()).await {
                tracing::debug!(error, portal, "iscsiadm had no record to delete");
            }
        }
        failed
    }

    /// Has the kernel forget one disk on all its paths, first what joins them.
    async fn drop_lun(&self, record: &Record) -> Result<(), String> {
        let (sys, iqn, lun) = (self.sys.clone(), record.iqn.clone(), record.lun.parse::<u64>());
        let paths = blocking(move || {
            let luns = sysfs::sessions(&sys, &iqn)?.iter().map(sysfs::luns).collect::<Result<Vec<_>, _>>()?;
            let mine: Vec<_> = luns.into_iter().flatten().filter(|found| Ok(found.number) == lun).collect();
            let mut joined = Vec::new();
            for device in mine.iter().flat_map(|lun| &lun.devices) {
                joined.extend(sysfs::joined(&sys, device)?);
            }
            joined.sort();
            joined.dedup();
            Ok((mine, joined))
        });
        let (mine, joined) = paths.await?;
        for name in joined {
            let device = self.dev.join(&name);
            let looked_at = device.clone();
            if !blocking(move || sysfs::is_idle(&looked_at)).await? {
                return Err(format!("{} is in use", device.display()));
            }
            let output =
                crate::volumes::disk::run(Path::new("multipath"), &["-f".as_ref(), device.as_os_str()]).await?;
            if !output.status.success() {
                return Err(format!("failed to flush {name}: {}", crate::volumes::disk::said(&output)));
            }
        }
        let dev = self.dev.clone();
        blocking(move || {
            // All are looked at before the first goes.
            for name in mine.iter().flat_map(|lun| &lun.devices) {
                if !sysfs::is_idle(&dev.join(name))? {
                    return Err(format!("{name} is in use"));
                }
            }
            mine.iter().try_for_each(sysfs::delete)
        })
        .await
    }
}
