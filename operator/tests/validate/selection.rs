//! What is read, and what counts: `--exclude`, `--only-pools`, `--require-pools`, `--ignore`, `--warnings-as-errors`.

use std::fs;
use std::path::Path;

use tempfile::TempDir;

use crate::command::{good, run};
use crate::ip_pool;

fn write(folder: &Path, path: &str, text: &str) {
    let path = folder.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

#[test]
fn excluded_files_and_folders_are_not_read() {
    let folder = TempDir::new().unwrap();
    for path in ["a.yaml", "kustomization.yaml", "charts/x/values.yaml", "deep/kustomization.yaml", "deep/b.yaml"] {
        write(folder.path(), path, if path.ends_with("/b.yaml") || path == "a.yaml" { "" } else { "[" });
    }
    write(folder.path(), "a.yaml", &good("a", 1));
    write(folder.path(), "deep/b.yaml", &good("b", 2));
    let last = |args: &[&str]| {
        let ran = run(folder.path(), args, "");
        (ran.code, ran.out.lines().last().unwrap_or_default().to_owned() + &ran.err)
    };
    let both = (Some(0), "2 pools: 2 valid, 0 invalid".to_owned());
    assert_eq!(last(&["-R", ".", "--exclude", "kustomization.yaml", "--exclude", "charts"]), both);
    assert_eq!(last(&["-R", ".", "--exclude", "*zation.yaml", "--exclude", "charts/**"]), both);
    assert_eq!(last(&["-R", ".", "--exclude", "**/kustomization.yaml", "--exclude", "charts/"]), both);
    // A star stays within a name.
    assert_eq!(last(&["-R", ".", "--exclude", "*/values.yaml", "--exclude", "kustomization.yaml"]).0, Some(1));
    // A file that is named is excluded, too, as pre-commit needs it.
    let one = (Some(0), "1 pool: 1 valid, 0 invalid".to_owned());
    assert_eq!(last(&["a.yaml", "kustomization.yaml", "--exclude", "kustomization.yaml"]), one);
    assert_eq!(last(&["deep", "--exclude", "deep/b.yaml", "--exclude", "kustomization.yaml"]).0, Some(0));
    let wrong = run(folder.path(), &[".", "--exclude", "[a", "--exclude", "a**b"], "");
    assert_eq!(wrong.code, Some(2));
    assert!(
        wrong.err.contains(r#"--exclude "[a" must be a pattern"#) && wrong.err.contains(r#""a**b""#),
        "{}",
        wrong.err
    );
}

#[test]
fn only_pools_skips_what_is_no_object_and_no_pool() {
    let folder = TempDir::new().unwrap();
    write(folder.path(), "values.yaml", "image: {tag: v1}\n---\n- a\n---\n7\n");
    write(folder.path(), "template.yaml", "{{- if .Values.on }}\na: [\n{{- end }}\n");
    write(folder.path(), "empty.yaml", "");
    write(folder.path(), "a.yaml", &good("a", 1));
    let all = ["-R", "."];
    assert_eq!(run(folder.path(), &all, "").code, Some(1));
    let ran = run(folder.path(), &["--only-pools", "-R", "."], "");
    assert_eq!((ran.code, ran.out.lines().count()), (Some(0), 1), "{}", ran.out);
    assert!(ran.out.starts_with("1 pool: 1 valid, 0 invalid; "), "{}", ran.out);
    assert_eq!(run(folder.path(), &["--only-pools", "empty.yaml"], "").code, Some(0));
    // What may be a pool is not skipped.
    for (text, field) in [
        ("kind: IPPool\nmetadata: {name: a}\n", "apiVersion: is required"),
        ("apiVersion: nv-ipam.nvidia.com/v1alpha1\nmetadata: {name: a}\n", "kind: is required"),
        ("apiVersion: nv-ipam.nvidia.com/v1alpha1\nkind: IpPool\n", "write IPPool"),
        ("apiVersion: nv-ipam.nvidia.com/v1alpha1\nkind: IPPool\nspec: [\n", "does not read as YAML"),
    ] {
        let ran = run(folder.path(), &["--only-pools", "-"], text);
        assert_eq!(ran.code, Some(1), "{text}: {}", ran.out);
        assert!(ran.out.contains(field), "{text}: {}", ran.out);
    }
}

#[test]
fn required_pools_that_are_missing_are_an_error() {
    let folder = TempDir::new().unwrap();
    let other = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\n";
    assert_eq!(run(folder.path(), &["-"], other).code, Some(0));
    let ran = run(folder.path(), &["--require-pools", "-"], other);
    assert_eq!(ran.code, Some(2));
    assert!(ran.err.contains("there is no IPPool or CIDRPool, but 1 other object"), "{}", ran.err);
    assert_eq!(run(folder.path(), &["--require-pools", "-"], &good("a", 1)).code, Some(0));
}

#[test]
fn warnings_count_as_errors_unless_they_are_ignored() {
    let folder = TempDir::new().unwrap();
    let pool = ip_pool("a", "{subnet: 10.1.0.0/24, perNodeBlockSize: 4, colour: red, gateway: 10.1.0.1}");
    let code = |args: &[&str]| run(folder.path(), &[&["-"], args].concat(), &pool).code;
    assert_eq!(code(&[]), Some(0));
    assert_eq!(code(&["--warnings-as-errors"]), Some(1));
    assert_eq!(code(&["--warnings-as-errors", "--ignore", "UnknownField"]), Some(1));
    let ran = run(folder.path(), &["-", "--warnings-as-errors", "--ignore", "UnknownField,GatewayInBlock"], &pool);
    assert_eq!((ran.code, &*ran.out), (Some(0), "1 pool: 1 valid, 0 invalid; warnings count as errors\n"));
    let ran = run(folder.path(), &["-", "--ignore", "UnknownFeld", "--ignore", "x"], &pool);
    assert_eq!(ran.code, Some(2));
    let (near, all) =
        (r#"--ignore "UnknownFeld" is not the code of a warning; did you mean UnknownField?"#, "must be one of");
    assert!(ran.err.contains(near) && ran.err.contains(all), "{}", ran.err);
}

#[test]
fn a_file_can_be_named_as_for_kubectl() {
    let folder = TempDir::new().unwrap();
    write(folder.path(), "a.yaml", &good("a", 1));
    write(folder.path(), "b.yaml", &good("b", 2));
    let ran = run(folder.path(), &["-f", "a.yaml", "--filename", "b.yaml"], "");
    assert_eq!((ran.code, &*ran.out), (Some(0), "2 pools: 2 valid, 0 invalid\n"));
}
