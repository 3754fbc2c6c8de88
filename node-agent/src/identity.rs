//! Which store a journal is, and which machine and boot it is used in.
//!
//! The last report of this node carries the same. So an agent whose journal lacks what that report has can tell why: no pod of an
//! earlier boot runs any more, and pods of another machine that had this node's name may still run.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// The kernel's random ID of this boot. A container shows that of its node.
pub const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// Where the firmware shows the machine's UUID: with DMI, and with a device tree.
pub const SYSTEM_UUID: [&str; 2] = ["/sys/class/dmi/id/product_uuid", "/proc/device-tree/system-id"];
/// Another random UUID with each read.
const RANDOM: &str = "/proc/sys/kernel/random/uuid";
/// UUIDs that vendors ship in many machines.
const PLACEHOLDERS: [&str; 3] = [
    "00000000-0000-0000-0000-000000000000",
    "ffffffff-ffff-ffff-ffff-ffffffffffff",
    "03000200-0400-0500-0006-000700080009",
];
/// Maximum length of each ID, as in the CRD.
const LENGTH: usize = 64;

/// A store, a machine and a boot. What is unknown is `None`.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Identity {
    /// ID of the store. A new store has a new one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store: Option<String>,
    /// UUID of the machine, from its firmware.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<String>,
    /// ID of the boot. Another one with each start of the machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot: Option<String>,
}

impl Identity {
    /// This machine and boot by these files, and the ID that a new store gets. The first file with an ID counts.
    pub fn read<'a>(
        boot_ids: impl IntoIterator<Item = &'a Path>,
        machines: impl IntoIterator<Item = &'a Path>,
    ) -> Self {
        Self {
            store: id_in(Path::new(RANDOM)),
            machine: machines.into_iter().find_map(id_in),
            boot: boot_ids.into_iter().find_map(id_in),
        }
    }

    /// Those of this machine, where the kernel shows them.
    pub fn of_this_machine() -> Self {
        let machines = SYSTEM_UUID.map(PathBuf::from);
        Self::read([Path::new(BOOT_ID)], machines.iter().map(PathBuf::as_path))
    }

    /// Whether `other` is certainly of another boot of the same machine.
    pub fn is_another_boot(&self, other: &Self) -> bool {
        self.is_same_machine(other) && differ(self.boot.as_ref(), other.boot.as_ref())
    }

    /// Whether `other` is certainly of the same machine.
    pub fn is_same_machine(&self, other: &Self) -> bool {
        self.machine.is_some() && self.machine == other.machine
    }

    /// Whether `other` is certainly of another machine.
    pub fn is_another_machine(&self, other: &Self) -> bool {
        differ(self.machine.as_ref(), other.machine.as_ref())
    }

    /// Whether `other` is certainly of another store.
    pub fn is_another_store(&self, other: &Self) -> bool {
        differ(self.store.as_ref(), other.store.as_ref())
    }
}

fn differ(one: Option<&String>, other: Option<&String>) -> bool {
    one.is_some() && other.is_some() && one != other
}

/// The ID in the file, in lower case. `None` if there is none, or one that says nothing.
fn id_in(path: &Path) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    let id = text.trim_matches(|c: char| c.is_whitespace() || c == '\0').to_ascii_lowercase();
    let is_id = !id.is_empty() && id.len() <= LENGTH && id.bytes().all(|byte| byte.is_ascii_graphic());
    (is_id && !PLACEHOLDERS.contains(&id.as_str())).then_some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(machine: Option<&str>, boot: Option<&str>) -> Identity {
        Identity { store: None, machine: machine.map(str::to_owned), boot: boot.map(str::to_owned) }
    }

    #[test]
    fn another_boot_is_certain_only_on_the_same_machine() {
        let here = identity(Some("m"), Some("b"));
        for (other, is_another_boot, is_another_machine) in [
            (identity(Some("m"), Some("b")), false, false),
            (identity(Some("m"), Some("c")), true, false),
            (identity(Some("n"), Some("c")), false, true),
            (identity(None, Some("c")), false, false),
            (identity(Some("m"), None), false, false),
            (Identity::default(), false, false),
        ] {
            let found = (here.is_another_boot(&other), here.is_another_machine(&other));
            assert_eq!(found, (is_another_boot, is_another_machine), "{other:?}");
        }
    }

    #[test]
    fn an_id_is_read_from_the_first_file_that_has_one() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let none = folder.path().join("none");
        let placeholder = file("placeholder", "03000200-0400-0500-0006-000700080009\n");
        let tree = file("tree", "ABCD-1\0");
        let long = file("long", &"x".repeat(65));
        let read = Identity::read([none.as_path(), &long], [none.as_path(), &placeholder, &tree]);
        assert_eq!((read.machine.as_deref(), read.boot), (Some("abcd-1"), None));
        let [one, other] = [(); 2].map(|()| Identity::of_this_machine());
        assert!(one.boot.is_some() && one.boot == other.boot, "{one:?}");
        assert!(one.is_another_store(&other), "each new store has an ID of its own");
    }
}
