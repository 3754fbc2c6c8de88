//! The `CNI_*` environment. Decides which variables a command needs and whether their values are well formed
//! (CNI specification 1.1, "Parameters"); reads nothing but the pairs it is given.

use std::ffi::{OsStr, OsString};

use crate::Command;
use crate::mistake::Mistakes;

/// The kernel's limit for the name of an interface (IFNAMSIZ without the terminating zero).
const IFNAME_MAX: usize = 15;

/// The variables of one call, as the runtime set them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Environment<'a>(pub(crate) &'a [(OsString, OsString)]);

/// The interface a call is about. A pair: `a_b`+`c` is not `a`+`b_c`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Interface {
    pub(crate) container_id: String,
    pub(crate) name: String,
}

/// What the runtime says about the pod in `CNI_ARGS`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct PodArgs {
    pub(crate) pod_name: String,
    pub(crate) pod_namespace: String,
    pub(crate) pod_uid: String,
    /// The value of `IP`, not yet parsed.
    pub(crate) ip: String,
}

impl<'a> Environment<'a> {
    /// The value of a variable as it is, for logs and for the question whether it is set at all.
    pub(crate) fn raw(self, name: &str) -> Option<&'a OsStr> {
        self.0.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_os_str()).filter(|value| !value.is_empty())
    }

    /// `CNI_COMMAND`.
    pub(crate) fn command(self, mistakes: &mut Mistakes) -> Option<Command> {
        let text = self.required("CNI_COMMAND", mistakes)?;
        let command = Command::parse(text);
        if command.is_none() {
            mistakes
                .add("CNI_COMMAND", format_args!("{text:?} is unknown, want ADD, DEL, CHECK, STATUS, GC or VERSION"));
        }
        command
    }

    /// `CNI_CONTAINERID` and `CNI_IFNAME`.
    pub(crate) fn interface(self, mistakes: &mut Mistakes) -> Option<Interface> {
        let container_id = self.required("CNI_CONTAINERID", mistakes);
        if let Some(id) = container_id.filter(|id| !is_identifier(id)) {
            mistakes.add(
                "CNI_CONTAINERID",
                format_args!(
                    "{id:?} must start with a letter or digit and go on with letters, digits, '_', '.' or '-'"
                ),
            );
        }
        let name = self.required("CNI_IFNAME", mistakes);
        if let Some(name) = name.filter(|name| !is_interface_name(name)) {
            mistakes.add(
                "CNI_IFNAME",
                format_args!(
                    "{name:?} must have 1 to {IFNAME_MAX} bytes, no '/', ':' or white space, and not be '.' or '..'"
                ),
            );
        }
        Some(Interface { container_id: container_id?.to_owned(), name: name?.to_owned() })
    }

    /// `CNI_ARGS`, `KEY=VALUE` pairs with semicolons between them.
    pub(crate) fn pod_args(self, mistakes: &mut Mistakes) -> PodArgs {
        let mut args = PodArgs::default();
        let mut unknown = Vec::new();
        let mut ignore_unknown = false;
        let text = self.text("CNI_ARGS", mistakes).unwrap_or_default();
        for pair in text.split(';').filter(|pair| !pair.is_empty()) {
            let Some((key, value)) = pair.split_once('=') else {
                mistakes.add("CNI_ARGS", format_args!("{pair:?} is not a KEY=VALUE pair"));
                continue;
            };
            match key {
                "K8S_POD_NAME" => value.clone_into(&mut args.pod_name),
                "K8S_POD_NAMESPACE" => value.clone_into(&mut args.pod_namespace),
                "K8S_POD_UID" => value.clone_into(&mut args.pod_uid),
                "IP" => value.clone_into(&mut args.ip),
                "IgnoreUnknown" => match value.to_ascii_lowercase().as_str() {
                    "1" | "true" => ignore_unknown = true,
                    "0" | "false" => ignore_unknown = false,
                    _ => mistakes.add("CNI_ARGS.IgnoreUnknown", format_args!("{value:?}, want 1, true, 0 or false")),
                },
                _ => unknown.push(key),
            }
        }
        if !ignore_unknown {
            for key in unknown {
                mistakes.add(format_args!("CNI_ARGS.{key}"), "unknown key, and IgnoreUnknown is not set");
            }
        }
        args
    }

    fn required(self, name: &str, mistakes: &mut Mistakes) -> Option<&'a str> {
        if self.raw(name).is_none() {
            mistakes.add(name, "required, but not set");
        }
        self.text(name, mistakes)
    }

    fn text(self, name: &str, mistakes: &mut Mistakes) -> Option<&'a str> {
        let value = self.raw(name)?;
        if value.to_str().is_none() {
            mistakes.add(name, format_args!("\"{}\" is not UTF-8", value.as_encoded_bytes().escape_ascii()));
        }
        value.to_str()
    }
}

/// The specification's rule for container ids and network names.
pub(crate) fn is_identifier(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-'))
}

/// The kernel's rule for interface names (`dev_valid_name`), and the specification's.
pub(crate) fn is_interface_name(text: &str) -> bool {
    (1..=IFNAME_MAX).contains(&text.len())
        && !matches!(text, "." | "..")
        && !text.contains(|c: char| matches!(c, '/' | ':' | '\0') || c.is_whitespace())
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use super::*;

    fn args(text: &str) -> (PodArgs, String) {
        let pairs = [(OsString::from("CNI_ARGS"), OsString::from(text))];
        let mut mistakes = Mistakes::default();
        let args = Environment(&pairs).pod_args(&mut mistakes);
        (args, mistakes.to_string())
    }

    #[test]
    fn the_known_arguments_are_read_and_unknown_ones_need_ignore_unknown() {
        let text = "K8S_POD_INFRA_CONTAINER_ID=c;K8S_POD_NAME=p;K8S_POD_NAMESPACE=n;K8S_POD_UID=u;IP=10.0.0.1;X=1";
        let read =
            PodArgs { pod_name: "p".into(), pod_namespace: "n".into(), pod_uid: "u".into(), ip: "10.0.0.1".into() };
        for ignore in ["1", "true", "TRUE"] {
            // The order of the pairs does not matter.
            assert_eq!(args(&format!("{text};IgnoreUnknown={ignore}")), (read.clone(), String::new()));
            assert_eq!(args(&format!("IgnoreUnknown={ignore};{text}")), (read.clone(), String::new()));
        }
        for ignore in ["", ";IgnoreUnknown=0", ";IgnoreUnknown=false"] {
            let (_, mistakes) = args(&format!("{text}{ignore}"));
            assert_eq!(
                mistakes,
                "CNI_ARGS.K8S_POD_INFRA_CONTAINER_ID: unknown key, and IgnoreUnknown is not set; \
                 CNI_ARGS.X: unknown key, and IgnoreUnknown is not set"
            );
        }
    }

    #[test]
    fn malformed_arguments_are_all_named() {
        let (_, mistakes) = args("K8S_POD_NAME;IgnoreUnknown=maybe;;=");
        assert_eq!(
            mistakes,
            "CNI_ARGS: \"K8S_POD_NAME\" is not a KEY=VALUE pair; \
             CNI_ARGS.IgnoreUnknown: \"maybe\", want 1, true, 0 or false; \
             CNI_ARGS.: unknown key, and IgnoreUnknown is not set"
        );
    }

    #[test]
    fn interface_and_container_follow_the_rules_of_the_specification() {
        for good in ["eth0", "net1", "a.b", "123456789012345", "..."] {
            assert!(is_interface_name(good), "{good}");
        }
        for bad in ["", ".", "..", "1234567890123456", "a/b", "a:b", "a b", "a\tb"] {
            assert!(!is_interface_name(bad), "{bad}");
        }
        for good in ["a", "0b", "a_b.c-d"] {
            assert!(is_identifier(good), "{good}");
        }
        for bad in ["", "_a", "-a", ".a", "a/b", "a b", "ä"] {
            assert!(!is_identifier(bad), "{bad}");
        }
    }

    #[test]
    fn every_bad_variable_is_named_at_once() {
        let pairs = [
            (OsString::from("CNI_COMMAND"), OsString::from("EXPLODE")),
            (OsString::from("CNI_CONTAINERID"), OsString::from_vec(vec![0xFF])),
        ];
        let mut mistakes = Mistakes::default();
        assert_eq!(Environment(&pairs).command(&mut mistakes), None);
        assert_eq!(Environment(&pairs).interface(&mut mistakes), None);
        assert_eq!(
            mistakes.to_string(),
            "CNI_COMMAND: \"EXPLODE\" is unknown, want ADD, DEL, CHECK, STATUS, GC or VERSION; \
             CNI_CONTAINERID: \"\\xff\" is not UTF-8; CNI_IFNAME: required, but not set"
        );
    }
}
