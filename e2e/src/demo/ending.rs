//! The end of the demo: the final state of the cluster, the summary, and the next steps.

use anyhow::Result;

use super::pools::RDMA;
use super::scene::{NAMESPACE, Scene};
use crate::binaries;
use crate::netns::Node;

/// Where a reader finds more.
const THIRD_STEP: [&str; 3] = [
    "3. Read on, and install nv-ipam in a cluster of your own:",
    "     docs/README.md             the documentation",
    "     charts/nv-ipam/README.md   the Helm chart",
];

impl Scene {
    /// Prints the final state, the summary and the next steps. With `keep` it does not return, so that the cluster runs
    /// until Ctrl-C.
    pub(super) fn finish(mut self, keep: bool) -> Result<()> {
        self.story.step("Show the final state", "the status shows the blocks of each node and the addresses in use")?;
        self.await_totals()?;
        self.kubectl(&["get", "ippools,cidrpools,ipamnodes", "-n", NAMESPACE])?;
        self.story.line("Events of the operator:")?;
        self.kubectl(&["get", "events", "-n", NAMESPACE, "--field-selector=reason!=LeaderElection"])?;
        self.story.summary()?;
        self.story.heading("Next steps (run the commands in the root of the repository)")?;
        self.show_first_step(keep)?;
        self.show_second_step()?;
        THIRD_STEP.iter().try_for_each(|line| self.story.line(line))?;
        if keep {
            loop {
                std::thread::park();
            }
        }
        Ok(())
    }

    /// How to use kubectl on the cluster of the demo.
    fn show_first_step(&mut self, keep: bool) -> Result<()> {
        if !keep {
            self.story.line("1. Run the demo again, keep its cluster, and use kubectl on it:")?;
            return self.story.line("     cargo demo -- --keep");
        }
        self.story.line("1. Use kubectl on this cluster. It runs until you press Ctrl-C here. In another terminal:")?;
        let mut lines = vec![
            format!("export KUBECONFIG={}", self.plane.kubeconfig().display()),
            format!("alias kubectl={}", self.plane.kubectl().program().display()),
            format!("kubectl get ippools,cidrpools,ipamnodes -n {NAMESPACE}"),
            "kubectl explain ippool.spec".to_owned(),
        ];
        let shell = |node: &Node| format!("{}     # a shell on {}", node.entrance().shell_line(), node.name());
        lines.extend(self.nodes.iter().map(shell));
        lines.push("ip netns     # in such a shell: the pods of the node".to_owned());
        lines.push(format!("ls {}     # logs", self.plane.directory().display()));
        lines.iter().try_for_each(|line| self.story.line(&format!("     {line}")))?;
        self.story
            .line("   No kubelet runs: change pools and Nodes as you like, but a Pod that you create does not start.")
    }

    /// How to check a pool with the operator's program, which the demo has built.
    fn show_second_step(&mut self) -> Result<()> {
        let program = &binaries::build()?.controller;
        let program = program.strip_prefix(binaries::workspace()).unwrap_or(program).display();
        self.story.line("2. Write a pool of your own and check it with the operator's program, without a cluster:")?;
        self.story.line(&format!("     cp {} my-pool.yaml     # then edit my-pool.yaml", RDMA.file))?;
        self.story.line(&format!("     {program} validate --nodes 3 --explain my-pool.yaml"))
    }
}
