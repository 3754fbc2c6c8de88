//! Builds tools with `go build` from the pinned modules. The module files are part of this program, so what the cache's name says
//! and what is built are the same bytes.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};

use super::Tool;
use crate::child;
use crate::progress::{Step, say};

struct Module {
    name: &'static str,
    go_mod: &'static str,
    go_sum: &'static str,
    /// A program of our own over the module's library packages, where its own commands cannot be required.
    main_go: Option<&'static str>,
}

const KUBERNETES: Module = Module {
    name: "kubernetes",
    go_mod: include_str!("../../assets/kubernetes/go.mod"),
    go_sum: include_str!("../../assets/kubernetes/go.sum"),
    main_go: None,
};
const ETCD: Module = Module {
    name: "etcd",
    go_mod: include_str!("../../assets/etcd/go.mod"),
    go_sum: include_str!("../../assets/etcd/go.sum"),
    main_go: None,
};
const HELM: Module = Module {
    name: "helm",
    go_mod: include_str!("../../assets/helm/go.mod"),
    go_sum: include_str!("../../assets/helm/go.sum"),
    main_go: None,
};
const CERT_MANAGER: Module = Module {
    name: "cert-manager",
    go_mod: include_str!("../../assets/cert-manager/go.mod"),
    go_sum: include_str!("../../assets/cert-manager/go.sum"),
    main_go: Some(include_str!("../../assets/cert-manager/main.go")),
};

/// The release that the go.mod files ask for. An older one would have to fetch it, which `GOTOOLCHAIN` or the network may not allow.
const OLDEST_GO: super::Version = super::Version(1, 26);

/// Everything the build of a tool depends on, for the name of its cache folder. The tools of a control plane share a folder;
/// others have one for each module, so that a new version of one builds none of the others anew.
pub(super) fn inputs(tool: Tool) -> Vec<u8> {
    let modules = match tool {
        Tool::Helm => vec![&HELM],
        Tool::CertManager => vec![&CERT_MANAGER],
        _ => vec![&KUBERNETES, &ETCD],
    };
    let flags = flags().join(" ");
    let files = modules.iter().flat_map(|module| [Some(module.go_mod), Some(module.go_sum), module.main_go]).flatten();
    files.chain([flags.as_str(), std::env::consts::ARCH]).collect::<Vec<_>>().join("\n").into_bytes()
}

const fn module(tool: Tool) -> &'static Module {
    match tool {
        Tool::Etcd => &ETCD,
        Tool::Helm => &HELM,
        Tool::CertManager => &CERT_MANAGER,
        _ => &KUBERNETES,
    }
}

/// The folder of the sources of a required module, fetched when it is not there.
pub(super) fn sources(tool: Tool, path: &str) -> Result<std::path::PathBuf> {
    ensure_go(&[tool])?;
    let scratch = tempfile::tempdir()?;
    write_module(module(tool), scratch.path())?;
    let mut step = Step::start(&format!("go mod download {path}"));
    let mut command = Command::new("go");
    command.args(["mod", "download", "-json", path]).current_dir(scratch.path()).env("GOWORK", "off");
    let output = child::output(&mut command).with_context(|| format!("go mod download {path}"))?;
    step.tick();
    ensure!(output.status.success(), "go mod download {path}: {}", String::from_utf8_lossy(&output.stderr));
    let told: serde_json::Value = serde_json::from_slice(&output.stdout).context("go told no JSON")?;
    step.done();
    told["Dir"].as_str().map(std::path::PathBuf::from).with_context(|| format!("go told no folder of {path}"))
}

fn write_module(module: &Module, folder: &Path) -> Result<()> {
    fs::write(folder.join("go.mod"), module.go_mod)?;
    fs::write(folder.join("go.sum"), module.go_sum)?;
    if let Some(main) = module.main_go {
        fs::write(folder.join("main.go"), main)?;
    }
    Ok(())
}

/// Builds each of `tools` into `folder`; nothing happens when there are none.
pub(super) fn build(tools: &[Tool], folder: &Path) -> Result<()> {
    if tools.is_empty() {
        return Ok(());
    }
    ensure_go(tools)?;
    say(&format!(
        "building {} test tools once into {}; with an empty Go cache this takes minutes",
        tools.len(),
        folder.display()
    ));
    for tool in tools {
        build_one(*tool, folder)?;
    }
    Ok(())
}

fn build_one(tool: Tool, folder: &Path) -> Result<()> {
    let scratch = tempfile::Builder::new().prefix(".build.").tempdir_in(folder)?;
    let module = module(tool);
    write_module(module, scratch.path())?;
    let log = scratch.path().join("log");
    let output = scratch.path().join(tool.name());
    let mut step = Step::start(&format!("go build {}", tool.name()));
    let mut child = Command::new("go")
        .arg("build")
        .args(flags())
        .arg("-o")
        .arg(&output)
        .arg(package(tool))
        .current_dir(scratch.path())
        .env("CGO_ENABLED", "0")
        .env("GOWORK", "off")
        .env("GOFLAGS", "-mod=readonly")
        // The compiler then collects its own garbage less often, which takes about an eighth less time for the packages of Kubernetes.
        .env("GOGC", "400")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(fs::File::create(&log)?)
        .spawn()
        .context("cannot start go")?;
    let status = watch(&mut child, &mut step)?;
    if !status.success() {
        let said = fs::read_to_string(&log).unwrap_or_default();
        bail!("go build {} (module {}) failed, {status}:\n{said}", tool.name(), module.name);
    }
    fs::rename(&output, folder.join(tool.name()))
        .with_context(|| format!("cannot move {} into the cache", tool.name()))?;
    step.done();
    Ok(())
}

/// Waits for the compiler, and lets the person in front know that it is alive.
fn watch(child: &mut Child, step: &mut Step) -> Result<ExitStatus> {
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        step.tick();
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn ensure_go(tools: &[Tool]) -> Result<()> {
    let names: Vec<&str> = tools.iter().map(|tool| tool.name()).collect();
    let names = names.join(", ");
    let output = Command::new("go").arg("version").output().map_err(|_| {
        anyhow!(
            "not found on this machine: {names}; install Go {}.{} or newer (https://go.dev/dl) to have them built, \
                 or set KUBEBUILDER_ASSETS (and CNI_PATH for the plugins) to folders that hold them",
            OLDEST_GO.0,
            OLDEST_GO.1
        )
    })?;
    let said = String::from_utf8_lossy(&output.stdout).replace(" go1", " 1");
    let version =
        super::Version::find(&said).with_context(|| format!("cannot read the version of Go from {said:?}"))?;
    ensure!(
        version >= OLDEST_GO,
        "Go {}.{} is too old to build {names}: install {}.{} or newer",
        version.0,
        version.1,
        OLDEST_GO.0,
        OLDEST_GO.1
    );
    Ok(())
}

fn package(tool: Tool) -> String {
    match tool {
        Tool::Multus => "gopkg.in/k8snetworkplumbingwg/multus-cni.v4/cmd/multus".to_owned(),
        Tool::KubeApiserver | Tool::ControllerManager | Tool::Scheduler | Tool::Kubelet | Tool::Kubectl => {
            format!("k8s.io/kubernetes/cmd/{}", tool.name())
        }
        Tool::Etcd => "go.etcd.io/etcd/server/v3".to_owned(),
        Tool::Helm => "helm.sh/helm/v4/cmd/helm".to_owned(),
        Tool::CertManager => ".".to_owned(),
        Tool::Cnitool => "github.com/containernetworking/cni/cnitool".to_owned(),
        Tool::HostLocal => "github.com/containernetworking/plugins/plugins/ipam/host-local".to_owned(),
        plugin => format!("github.com/containernetworking/plugins/plugins/main/{}", plugin.name()),
    }
}

/// kube-apiserver derives its compatibility version from these variables and will not start without them.
fn flags() -> Vec<String> {
    let version = required(KUBERNETES.go_mod, "k8s.io/kubernetes").unwrap_or("v0.0.0");
    let mut numbers = version.trim_start_matches('v').split('.');
    let (major, minor) = (numbers.next().unwrap_or_default(), numbers.next().unwrap_or_default());
    let variables = [("gitVersion", version), ("gitMajor", major), ("gitMinor", minor), ("gitTreeState", "clean")];
    let set: Vec<String> =
        variables.iter().map(|(name, value)| format!("-X k8s.io/component-base/version.{name}={value}")).collect();
    vec!["-trimpath".to_owned(), format!("-ldflags=-s -w {}", set.join(" "))]
}

/// The version of a module that a go.mod requires.
fn required<'a>(go_mod: &'a str, module: &str) -> Option<&'a str> {
    go_mod.lines().find_map(|line| {
        let mut words = line.split_whitespace().filter(|word| *word != "require");
        (words.next()? == module).then(|| words.next()).flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::super::Version;
    use super::*;

    #[test]
    fn the_version_built_in_is_the_one_that_is_pinned() {
        let version = required(KUBERNETES.go_mod, "k8s.io/kubernetes").unwrap();
        assert!(version.starts_with("v1."), "{version}");
        assert!(flags()[1].contains(&format!("gitVersion={version}")), "{:?}", flags());
    }

    #[test]
    fn the_modules_and_all_texts_ask_for_the_same_go() {
        let modules = [KUBERNETES, ETCD, HELM, CERT_MANAGER];
        let go = |module: &Module| module.go_mod.lines().find_map(|line| Version::find(line.strip_prefix("go ")?));
        assert_eq!(modules.iter().filter_map(go).max(), Some(OLDEST_GO));
        let Version(major, minor) = OLDEST_GO;
        for (file, wanted) in [
            ("README.md", format!("Go {major}.{minor} or newer")),
            (".ci/run", format!("Go {major}.{minor} or newer")),
            (".github/workflows/ci.yaml", format!("go-version: \"{major}.{minor}\"")),
        ] {
            let text = fs::read_to_string(crate::binaries::workspace().join(file)).unwrap();
            assert!(text.contains(&wanted), "{file} must say {wanted:?}");
        }
    }

    #[test]
    fn every_package_to_build_is_a_pinned_module() {
        let pinned = [
            "k8s.io/kubernetes",
            "go.etcd.io/etcd/server/v3",
            "github.com/containernetworking/cni",
            "github.com/containernetworking/plugins",
            "gopkg.in/k8snetworkplumbingwg/multus-cni.v4",
            "helm.sh/helm/v4",
        ];
        // A program of our own is no package of a module; what it imports is pinned beside it.
        for tool in super::super::ALL.into_iter().filter(|tool| module(*tool).main_go.is_none()) {
            let (module, package) = (module(tool), package(tool));
            let owner = pinned.iter().find(|owner| package.starts_with(*owner)).unwrap();
            assert!(required(module.go_mod, owner).is_some(), "{package} is not required by {}", module.name);
        }
    }
}
