//! From what the runtime says to what the agent is asked: the configuration on standard input, `args.cni`,
//! `runtimeConfig`, `CNI_ARGS` and the conf file become one [`Plan`].
//!
//! Each command reads only what it needs: a mistake in something DEL does not use must not keep a pod from going away.
//! Nor must one in how the call is logged or how long it may take: DEL and GC go on with the default and log the mistake,
//! the other commands refuse it. What says which agent, pools and interface are meant has no default to go on with.
//! All mistakes are named at once. Below this module nobody checks an input again.

use std::net::IpAddr;
use std::time::Duration;

use ipam_node_api::AgentAddress;
use ipam_node_api::v1::{Attachment, IpamFeatures, IpamMetadata, IpamParameters, PoolType, ReleaseUnlistedRequest};
use serde_json::Value;

use crate::Command;
use crate::environment::{Environment, Interface, PodArgs, is_identifier};
use crate::error::{CniError, Code};
use crate::mistake::{Field, Mistakes};
use crate::settings::{Defaults, Layers};
use crate::version::SpecVersion;

/// One call to the agent, complete.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Plan {
    pub(crate) agent: AgentAddress,
    /// For connecting and the call together.
    pub(crate) timeout: Duration,
    pub(crate) action: Action,
    /// Mistakes that do not matter to this command; for the log.
    pub(crate) overlooked: Mistakes,
}

/// What is asked of the agent.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Action {
    Add(IpamParameters),
    Del(IpamParameters),
    Check(IpamParameters),
    Status,
    Gc(ReleaseUnlistedRequest),
}

impl Action {
    /// The pools it is about.
    pub(crate) fn pools(&self) -> &[String] {
        match self {
            Self::Add(parameters) | Self::Del(parameters) | Self::Check(parameters) => &parameters.pools,
            Self::Gc(request) => &request.pools,
            Self::Status => &[],
        }
    }
}

/// What a plan is made of.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Input<'a> {
    pub(crate) environment: Environment<'a>,
    /// The network configuration, an object.
    pub(crate) config: &'a Field<'a>,
    pub(crate) layers: &'a Layers<'a>,
    pub(crate) defaults: &'a Defaults,
}

/// The pools that a network configuration names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedPools {
    /// Kind of the pools; `Unspecified` if it is invalid.
    pub pool_type: PoolType,
    /// Their names.
    pub names: Vec<String>,
    /// Errors in the configuration, in the words of ADD. Each begins with the path of its field.
    pub errors: Vec<String>,
}

/// Reads which pools ADD would use with `config`, without the conf file of a node. `network` is the name of the network if `config` has none.
pub fn named_pools(config: &Value, network: &str) -> NamedPools {
    let (root, defaults) = (Field::document("", config), Defaults::default());
    let layers = Layers::new(root.object("ipam", &mut Mistakes::default()), None);
    let input = Input { environment: Environment(&[]), config: &root, layers: &layers, defaults: &defaults };
    let mut reading = Reading::new(&input);
    let network = if root.get("name").is_present() { reading.network_name() } else { network };
    reading.settings(&mut Mistakes::default());
    reading.cni_args();
    let (names, pool_type) = reading.pools(network);
    let mut errors = reading.config;
    errors.append(reading.comfort);
    NamedPools { pool_type, names, errors: errors.into_iter().collect() }
}

/// Reads the version of the configuration, and refuses one that is not spoken or does not have the command.
pub(crate) fn version(config: &Field<'_>, command: Command) -> Result<SpecVersion, CniError> {
    let mut mistakes = Mistakes::default();
    let text = config.get("cniVersion").text(&mut mistakes).unwrap_or_default();
    if !mistakes.is_empty() {
        return Err(CniError::of_mistakes(Code::InvalidConfig, &mistakes));
    }
    let Some(version) = SpecVersion::parse(text) else {
        let message = format!("cniVersion: {text:?} is not supported, want one of {}", SpecVersion::list());
        return Err(CniError::new(Code::IncompatibleVersion, message));
    };
    let first = SpecVersion::first_with(command);
    if version < first {
        let message = format!("cniVersion: {command} does not exist in {version}, want at least {first}");
        return Err(CniError::new(Code::IncompatibleVersion, message));
    }
    Ok(version)
}

/// Makes the plan for `command`, or names everything that is wrong.
pub(crate) fn plan(command: Command, input: &Input<'_>) -> Result<Plan, CniError> {
    let mut reading = Reading::new(input);
    let network = reading.network_name();
    let mut overlooked = Mistakes::default();
    let (timeout, agent) = reading.settings(&mut overlooked);
    let action = match command {
        Command::Add => reading.add(network),
        Command::Check => reading.check(network),
        Command::Del => reading.del(network, &mut overlooked),
        Command::Gc => Some(reading.gc(network)),
        Command::Status | Command::Version => Some(Action::Status),
    };
    let comfort = std::mem::take(&mut reading.comfort);
    match command {
        Command::Del | Command::Gc => overlooked.append(comfort),
        Command::Add | Command::Check | Command::Status | Command::Version => reading.config.append(comfort),
    }
    match (reading.mistakes(), agent, action) {
        (Ok(()), Some(agent), Some(action)) => Ok(Plan { agent, timeout, action, overlooked }),
        (Err(error), ..) => Err(error),
        (Ok(()), ..) => Err(CniError::new(Code::InvalidConfig, "the configuration is incomplete")),
    }
}

struct Reading<'a> {
    input: &'a Input<'a>,
    environment: Mistakes,
    config: Mistakes,
    /// Of keys whose default is good enough to let a pod go.
    comfort: Mistakes,
}

impl<'a> Reading<'a> {
    fn new(input: &'a Input<'a>) -> Self {
        Self { input, environment: Mistakes::default(), config: Mistakes::default(), comfort: Mistakes::default() }
    }

    /// What every command reads: how long a call may take, and where the agent is.
    fn settings(&mut self, overlooked: &mut Mistakes) -> (Duration, Option<AgentAddress>) {
        let input = self.input;
        let _ = input.config.object("ipam", &mut self.config);
        input.layers.check_conf_dir(&mut self.comfort);
        let (_, _) = input.layers.log(input.defaults, &mut self.comfort, overlooked);
        let timeout = input.layers.timeout(input.defaults, &mut self.comfort);
        (timeout, input.layers.agent(input.defaults, &mut self.config))
    }

    /// The environment's mistakes give the code when there are any, as the specification has a code for them alone.
    fn mistakes(self) -> Result<(), CniError> {
        let code = match (self.environment.is_empty(), self.config.is_empty()) {
            (true, true) => return Ok(()),
            (true, false) => Code::InvalidConfig,
            (false, _) => Code::InvalidEnvironment,
        };
        let mut all = self.environment;
        all.append(self.config);
        Err(CniError::of_mistakes(code, &all))
    }

    fn network_name(&mut self) -> &'a str {
        let field = self.input.config.get("name");
        let name = field.required_text(&mut self.config).unwrap_or_default();
        if !name.is_empty() && !is_identifier(name) {
            self.config.add(
                field.path(),
                format_args!(
                    "{name:?} must start with a letter or digit and go on with letters, digits, '_', '.' or '-'"
                ),
            );
        }
        name
    }

    fn cni_args(&mut self) -> Field<'a> {
        self.input.config.object("args", &mut self.config).object("cni", &mut self.config)
    }

    fn pools(&mut self, network: &str) -> (Vec<String>, PoolType) {
        let args = self.cni_args_silently();
        let force = self.input.layers.forces_pool_name(&mut self.comfort);
        let names = self.input.layers.pool_names(&args, network, force, &mut self.config);
        (names, self.input.layers.pool_type(&args, &mut self.config))
    }

    /// `args.cni` for a second reader, who must not report its type again.
    fn cni_args_silently(&self) -> Field<'a> {
        self.input.config.object("args", &mut Mistakes::default()).object("cni", &mut Mistakes::default())
    }

    fn interface(&mut self) -> Option<Interface> {
        self.input.environment.interface(&mut self.environment)
    }

    /// The fields that ADD, DEL and CHECK have in common.
    fn parameters(&mut self, network: &str, pod: PodArgs) -> Option<IpamParameters> {
        self.cni_args();
        let (pools, pool_type) = self.pools(network);
        let interface = self.interface()?;
        let metadata = IpamMetadata {
            k8s_pod_name: pod.pod_name,
            k8s_pod_namespace: pod.pod_namespace,
            k8s_pod_uid: pod.pod_uid,
            device_id: String::new(),
            network_name: network.to_owned(),
        };
        Some(IpamParameters {
            pools,
            cni_containerid: interface.container_id,
            cni_ifname: interface.name,
            metadata: Some(metadata),
            pool_type: pool_type.into(),
            requested_ips: Vec::new(),
            features: None,
        })
    }

    fn add(&mut self, network: &str) -> Option<Action> {
        let pod = self.input.environment.pod_args(&mut self.environment);
        for (name, value) in [("K8S_POD_NAME", &pod.pod_name), ("K8S_POD_NAMESPACE", &pod.pod_namespace)] {
            if value.is_empty() {
                self.environment.add(format_args!("CNI_ARGS.{name}"), "required for ADD, but not set");
            }
        }
        if self.input.environment.raw("CNI_NETNS").is_none() {
            self.environment.add("CNI_NETNS", "required for ADD, but not set");
        }
        let requested_ips = self.requested_ips(&pod.ip);
        let features = self.features(!requested_ips.is_empty());
        let device_id = self.input.config.get("deviceID").text(&mut self.config).unwrap_or_default().to_owned();
        let mut parameters = self.parameters(network, pod)?;
        parameters.requested_ips = texts(&requested_ips);
        parameters.features = features;
        if let Some(metadata) = &mut parameters.metadata {
            metadata.device_id = device_id;
        }
        Some(Action::Add(parameters))
    }

    fn check(&mut self, network: &str) -> Option<Action> {
        let pod = self.input.environment.pod_args(&mut self.environment);
        let requested_ips = texts(&self.previous_ips());
        let parameters = self.parameters(network, pod)?;
        Some(Action::Check(IpamParameters { requested_ips, ..parameters }))
    }

    /// What the agent releases is named by pool and interface alone, so mistakes in `CNI_ARGS` are overlooked.
    fn del(&mut self, network: &str, overlooked: &mut Mistakes) -> Option<Action> {
        let pod = self.input.environment.pod_args(overlooked);
        self.parameters(network, pod).map(Action::Del)
    }

    fn gc(&mut self, network: &str) -> Action {
        self.cni_args();
        let (pools, pool_type) = self.pools(network);
        let valid_attachments = self.valid_attachments();
        let network_name = network.to_owned();
        Action::Gc(ReleaseUnlistedRequest { network_name, pools, pool_type: pool_type.into(), valid_attachments })
    }

    /// `runtimeConfig.ips`, else `args.cni.ips`, else `IP` in `CNI_ARGS`.
    fn requested_ips(&mut self, args_ip: &str) -> Vec<IpAddr> {
        let runtime = self.input.config.object("runtimeConfig", &mut self.config).get("ips").texts(&mut self.config);
        let args = self.cni_args_silently().get("ips").texts(&mut self.config);
        let mut from = |texts: Vec<(Field<'_>, &str)>| {
            let address = |(field, text): (Field<'_>, &str)| parse_ip(field.path(), text, &mut self.config);
            texts.into_iter().filter_map(address).collect::<Vec<_>>()
        };
        let has_runtime = !runtime.is_empty();
        let (runtime, args) = (from(runtime), from(args));
        if has_runtime {
            return runtime;
        }
        if !args.is_empty() {
            return args;
        }
        let texts = args_ip.split(',').map(str::trim).filter(|text| !text.is_empty());
        texts.filter_map(|text| parse_ip("CNI_ARGS.IP", text, &mut self.environment)).collect()
    }

    fn features(&mut self, static_ips: bool) -> Option<IpamFeatures> {
        let args = self.cni_args_silently();
        let gateway = args.get("allocateDefaultGateway").flag(&mut self.config).unwrap_or_default();
        let index = args.get("allocateIPWithIndex").whole(0..=i64::from(i32::MAX), &mut self.config);
        let index = index.and_then(|index| i32::try_from(index).ok());
        if usize::from(gateway) + usize::from(index.is_some()) + usize::from(static_ips) > 1 {
            let problem = "allocateDefaultGateway, allocateIPWithIndex and static addresses exclude one another";
            self.config.add("args.cni", problem);
        }
        let features = IpamFeatures { allocate_default_gateway: gateway, allocate_ip_with_index: index };
        (gateway || index.is_some()).then_some(features)
    }

    /// All addresses of `prevResult`, whichever of the three result forms it has.
    fn previous_ips(&mut self) -> Vec<IpAddr> {
        let previous = self.input.config.object("prevResult", &mut self.config);
        if !previous.is_present() {
            self.config.add("prevResult", "missing, CHECK compares it with what is reserved");
            return Vec::new();
        }
        let listed = previous.get("ips").list(&mut self.config).into_iter().map(|entry| entry.get("address"));
        let by_family = ["ip4", "ip6"].map(|family| previous.object(family, &mut self.config)).into_iter();
        let by_family = by_family.filter(Field::is_present).map(|entry| entry.get("ip"));
        let fields = listed.chain(by_family).collect::<Vec<_>>();
        if fields.is_empty() {
            self.config.add("prevResult.ips", "no address, but ADD gave at least one");
        }
        let address = |field: Field<'_>| {
            let text = field.required_text(&mut self.config)?;
            parse_ip(field.path(), text, &mut self.config)
        };
        fields.into_iter().filter_map(address).collect()
    }

    /// `cni.dev/valid-attachments`, or `cni.dev/attachments` as the text of the specification has it in one place.
    ///
    /// Absent is a mistake: read as an empty list it would release everything. `null` is how Go writes an empty list.
    fn valid_attachments(&mut self) -> Vec<Attachment> {
        const KEYS: [&str; 2] = ["cni.dev/valid-attachments", "cni.dev/attachments"];
        let Some(key) = KEYS.into_iter().find(|key| self.input.config.has(key)) else {
            self.config.add(KEYS[0], "missing, GC would have to take every attachment for gone");
            return Vec::new();
        };
        let entries = self.input.config.get(key).list(&mut self.config);
        let attachment = |entry: Field<'_>| {
            let container_id = entry.get("containerID").required_text(&mut self.config);
            let if_name = entry.get("ifname").required_text(&mut self.config);
            Some(Attachment { container_id: container_id?.to_owned(), if_name: if_name?.to_owned() })
        };
        entries.into_iter().filter_map(attachment).collect()
    }
}

fn texts(addresses: &[IpAddr]) -> Vec<String> {
    addresses.iter().map(IpAddr::to_string).collect()
}

/// An address that may carry a prefix length; the length must be one, and is dropped: the pool decides it.
fn parse_ip(field: &str, text: &str, mistakes: &mut Mistakes) -> Option<IpAddr> {
    let (address, length) = text.split_once('/').map_or((text, None), |(address, length)| (address, Some(length)));
    let is_valid = |address: &IpAddr| {
        let bits = if address.is_ipv4() { 32 } else { 128 };
        // `parse` alone would take a sign.
        let is_length = |text: &str| {
            text.bytes().all(|byte| byte.is_ascii_digit()) && text.parse::<u8>().is_ok_and(|length| length <= bits)
        };
        length.is_none_or(is_length)
    };
    // Go programs take ::ffff:10.0.0.5 for 10.0.0.5.
    let parsed = address.parse().ok().filter(is_valid).map(|address| address.to_canonical());
    if parsed.is_none() {
        mistakes.add(field, format_args!("{text:?} is not an IP address, want one like 10.0.0.5 or 10.0.0.5/24"));
    }
    parsed
}
