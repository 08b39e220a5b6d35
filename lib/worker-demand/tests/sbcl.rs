//! SBCL reads a demand file like the slaves of CL-MW: form by form, with `read`.

use std::process::Command;

/// Lisp code that prints each form; nothing is evaluated while reading.
const READ: &str = r#"
(let ((*read-eval* nil))
  (with-open-file (file (second *posix-argv*))
    (loop for form = (read file nil nil) while form
          do (format t "~S ~S~%" (first form) (rest form)))))"#;

#[test]
fn sbcl_reads_the_file() {
    let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/demand.lisp");
    let args = [
        "--noinform",
        "--no-sysinit",
        "--no-userinit",
        "--non-interactive",
    ];
    let output = match Command::new("sbcl")
        .args(args)
        .args(["--eval", READ])
        .arg(golden)
        .output()
    {
        Ok(output) => output,
        Err(error) => {
            assert!(
                std::env::var_os("CI").is_none(),
                "no sbcl: {error}; run contrib/install-deps labs"
            );
            eprintln!("SKIPPED: this test needs sbcl (contrib/install-deps labs)");
            return;
        }
    };
    let stdout = String::from_utf8(output.stdout).unwrap();
    assert!(
        output.status.success(),
        "{stdout}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let understood = [
        r#":COMPUTATION-STATUS (:IN-PROGRESS)"#,
        r#":TIMESTAMP (3488766071)"#,
        r#":MEMBER-ID ("12.0")"#,
        r#":UPDATE-INTERVAL (300)"#,
        r#":SLAVES-NEEDED (5)"#,
        r#":SLAVE-EXECUTABLE (("/opt/it's \"mine\"\\ping" ("/opt/libping.so")))"#,
        r#":SLAVE-ARGUMENTS (("--mw-slave" "$(reboot)" ""))"#,
    ];
    assert_eq!(stdout.lines().collect::<Vec<_>>(), understood);
}
