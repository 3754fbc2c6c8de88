//! The webhook's part of the command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use ipam_daemon::{BindAddress, Mistakes, gosyntax};

/// The webhook flags as typed.
#[derive(Args, Debug)]
pub struct WebhookFlags {
    /// Serve the validating webhook
    #[arg(long, num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true",
        value_name = "BOOL", help_heading = "Webhook")]
    webhook: String,
    /// Where the webhook listens
    #[arg(long, default_value = ":9443", value_name = "ADDRESS", help_heading = "Webhook")]
    webhook_bind_address: String,
    /// "files": tls.crt and tls.key in --webhook-cert-dir, written by another program; "self-managed": the operator's own CA, in a Secret
    #[arg(long, default_value = "files", value_name = "SOURCE", help_heading = "Webhook")]
    webhook_certificates: String,
    /// Directory of tls.crt and tls.key, for --webhook-certificates=files
    #[arg(
        long,
        default_value = "/tmp/k8s-webhook-server/serving-certs",
        value_name = "PATH",
        help_heading = "Webhook"
    )]
    webhook_cert_dir: String,
    /// Namespace of the webhook's Service and Secret, for --webhook-certificates=self-managed; empty means that of the pools
    #[arg(long, default_value = "", value_name = "NAMESPACE", help_heading = "Webhook")]
    webhook_namespace: String,
    /// Service through which the API server reaches the webhook, for --webhook-certificates=self-managed
    #[arg(long, default_value = "nv-ipam-webhook", value_name = "NAME", help_heading = "Webhook")]
    webhook_service: String,
    /// Secret of the certificates, for --webhook-certificates=self-managed
    #[arg(long, default_value = "nv-ipam-webhook-server-cert", value_name = "NAME", help_heading = "Webhook")]
    webhook_secret: String,
    /// ValidatingWebhookConfiguration whose caBundle the operator writes, for --webhook-certificates=self-managed
    #[arg(long, default_value = "nv-ipam-validating-webhook", value_name = "NAME", help_heading = "Webhook")]
    webhook_configuration: String,
    /// How long the webhook accepts reviews after SIGTERM, until the API servers use other replicas
    #[arg(long, default_value = "5s", value_name = "DURATION", help_heading = "Webhook")]
    webhook_drain: String,
}

/// The parsed webhook flags.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WebhookConfig {
    /// Where to listen.
    pub bind: BindAddress,
    /// Where the certificates come from.
    pub certificates: CertificateSource,
    /// How long the webhook still accepts reviews after a shutdown is requested.
    pub drain: Duration,
}

/// The source of the certificates.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CertificateSource {
    /// `tls.crt` and `tls.key` in this directory, which another program or an admin maintains.
    Files(PathBuf),
    /// A CA and a leaf that the webhook creates and keeps in a Secret.
    SelfManaged {
        /// Namespace of the Service and the Secret.
        namespace: String,
        /// The Service's name.
        service: String,
        /// The Secret's name.
        secret: String,
        /// The name of the ValidatingWebhookConfiguration.
        configuration: String,
    },
}

/// Longest drain that is accepted. A longer one is likely a typo: pods are killed 30 s after SIGTERM unless they request more.
const LONGEST_DRAIN: Duration = Duration::from_mins(10);

impl WebhookFlags {
    /// Parses the flags. Returns `None` if the webhook is off. Errors go to `mistakes` even then. `pools` is the namespace of
    /// the pools.
    pub fn read(&self, pools: &str, mistakes: &mut Mistakes) -> Option<WebhookConfig> {
        let on = mistakes.take("webhook", &self.webhook, gosyntax::boolean(&self.webhook), false);
        let config = WebhookConfig {
            bind: self.bind(on, mistakes),
            certificates: self.certificates(pools, mistakes),
            drain: self.drain(mistakes),
        };
        on.then_some(config)
    }

    fn bind(&self, on: bool, mistakes: &mut Mistakes) -> BindAddress {
        let typed = &self.webhook_bind_address;
        let bind = mistakes.take("webhook-bind-address", typed, BindAddress::parse(typed), BindAddress::Off);
        if on && typed == "0" {
            mistakes.add("webhook-bind-address", typed, "turns off what --webhook turns on; leave one of them out");
        }
        bind
    }

    fn certificates(&self, pools: &str, mistakes: &mut Mistakes) -> CertificateSource {
        let namespace = Some(&self.webhook_namespace).filter(|typed| !typed.is_empty());
        if let Some(Err(why)) = namespace.map(|typed| ipam_daemon::flags::namespace(typed)) {
            mistakes.add("webhook-namespace", &self.webhook_namespace, &why);
        }
        if let Err(why) = ipam_daemon::flags::namespace(&self.webhook_service) {
            mistakes.add(
                "webhook-service",
                &self.webhook_service,
                &why.replace("no namespace", "no name of a Service"),
            );
        }
        for (flag, typed) in
            [("webhook-secret", &self.webhook_secret), ("webhook-configuration", &self.webhook_configuration)]
        {
            if !is_name(typed) {
                mistakes.add(flag, typed, "is no name of an object; it takes 1 to 253 of a-z, 0-9, '-' and '.'");
            }
        }
        match self.webhook_certificates.as_str() {
            "self-managed" => CertificateSource::SelfManaged {
                namespace: namespace.cloned().unwrap_or_else(|| pools.to_owned()),
                service: self.webhook_service.clone(),
                secret: self.webhook_secret.clone(),
                configuration: self.webhook_configuration.clone(),
            },
            "files" => self.files(mistakes),
            other => {
                mistakes.add("webhook-certificates", other, "is no source; write files or self-managed");
                self.files(mistakes)
            }
        }
    }

    fn files(&self, mistakes: &mut Mistakes) -> CertificateSource {
        if self.webhook_cert_dir.is_empty() {
            mistakes.add("webhook-cert-dir", "", "is no directory; it holds tls.crt and tls.key");
        }
        CertificateSource::Files(PathBuf::from(&self.webhook_cert_dir))
    }

    fn drain(&self, mistakes: &mut Mistakes) -> Duration {
        let typed = &self.webhook_drain;
        let drain = mistakes.take("webhook-drain", typed, gosyntax::duration(typed), Duration::ZERO);
        if drain > LONGEST_DRAIN {
            mistakes.add("webhook-drain", typed, "is too long; it takes at most 10m");
        }
        drain
    }
}

/// Whether `text` is a DNS subdomain (RFC 1123), as object names must be.
fn is_name(text: &str) -> bool {
    let label = |label: &str| {
        let inner = label.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
        !label.is_empty() && inner && !label.starts_with('-') && !label.ends_with('-')
    };
    text.len() <= 253 && text.split('.').all(label)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        webhook: WebhookFlags,
    }

    fn read(args: &[&str]) -> Result<Option<WebhookConfig>, String> {
        let flags = Flags::try_parse_from(std::iter::once(&"x").chain(args)).map_err(|error| error.to_string())?;
        let mut mistakes = Mistakes::default();
        let config = flags.webhook.read("pools", &mut mistakes);
        mistakes.into_result(config).map_err(|mistakes| mistakes.to_string())
    }

    #[test]
    fn webhook_is_off_unless_asked_for_and_then_where_the_reference_has_it() {
        assert_eq!(read(&[]).unwrap(), None);
        assert_eq!(read(&["--webhook=false"]).unwrap(), None);
        let config = read(&["--webhook"]).unwrap().unwrap();
        assert_eq!(config.bind.to_string(), ":9443");
        assert_eq!(
            config.certificates,
            CertificateSource::Files(PathBuf::from("/tmp/k8s-webhook-server/serving-certs"))
        );
        assert_eq!(config.drain, Duration::from_secs(5));
    }

    #[test]
    fn self_managed_certificates_are_kept_beside_the_pools_unless_told_otherwise() {
        let source = |args: &[&str]| read(&[&["--webhook", "--webhook-certificates=self-managed"], args].concat());
        let expected = |namespace: &str, service: &str| CertificateSource::SelfManaged {
            namespace: namespace.to_owned(),
            service: service.to_owned(),
            secret: "nv-ipam-webhook-server-cert".to_owned(),
            configuration: "nv-ipam-validating-webhook".to_owned(),
        };
        assert_eq!(source(&[]).unwrap().unwrap().certificates, expected("pools", "nv-ipam-webhook"));
        let other = source(&["--webhook-namespace=net", "--webhook-service=hook"]).unwrap().unwrap();
        assert_eq!(other.certificates, expected("net", "hook"));
    }

    #[test]
    fn all_mistakes_are_named_at_once_also_while_the_webhook_is_off() {
        let wrong = [
            "--webhook-bind-address=x",
            "--webhook-certificates=magic",
            "--webhook-namespace=A",
            "--webhook-service=a.b",
            "--webhook-secret=-a",
            "--webhook-configuration=",
            "--webhook-cert-dir=",
            "--webhook-drain=5",
        ];
        let message = read(&wrong).unwrap_err();
        for flag in wrong {
            let name = flag.split('=').next().unwrap();
            assert!(message.contains(name), "{message} lacks {name}");
        }
        assert!(read(&["--webhook", "--webhook-bind-address=0"]).unwrap_err().contains("leave one of them out"));
        assert!(read(&["--webhook-drain=11m"]).unwrap_err().contains("at most 10m"));
    }
}
