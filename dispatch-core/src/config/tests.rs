//! Tests of the configuration file: defaults, errors, and the sample in contrib.

use super::*;

const FULL: &str = r#"
Clusters:
  zzzzz:
    SystemRootToken: "rootsecretrootsecret"
    ManagementToken: other
    PostgreSQL: {Connection: {host: db}}
    Services:
      Controller: {ExternalURL: "https://api.example:443/", InternalURLs: {}}
      Keepstore:
    TLS: {Insecure: true}
    API: {MaxItemsPerResponse: 1000}
    Containers:
      CrunchRunCommand: /usr/bin/crunch-run
      CrunchRunArgumentsList: [--cgroup-parent-subsystem=memory]
      RuntimeEngine: singularity
      ReserveExtraRAM: 550MiB
      MinRetryPeriod: 1m30s
      DispatchPrivateKey: none
      CloudVMs: {Enable: false}
      Colour: blue
      SLURM:
        Managed: false
        PrioritySpread: 42
        SbatchArgumentsList: ["--job-name=%U", "--mem=%M"]
        SbatchGPUArgumentsList:
        SbatchEnvironmentVariables: {SAMPLE: "", ARVADOS_KEEP_SERVICES: "u1 u2"}
        Account: {"*": lab, gpu: lab-gpu}
        QOS: high
        SbatchArgumentList: []
    InstanceTypes:
      SAMPLE: {VCPUs: 0}
      a1.small: {ProviderType: a1, VCPUs: 2, RAM: 256MB, IncludedScratch: 10G, AddedScratch: 1G, Price: 0.04}
      g1: {VCPUs: 8, RAM: 1024000000, Scratch: 1e9, Price: 2, Preemptible: true, GPU: {Stack: rocm, DriverVersion: "6.0", HardwareTarget: gfx1100, DeviceCount: 2, VRAM: 16GiB}}
      c1: {VCPUs: 1, RAM: 1GiB, CUDA: {DriverVersion: "11.0", HardwareCapability: "9.0", DeviceCount: 1}}
"#;

#[rustfmt::skip]
const SLURM: [Key; 8] = [
    Key::new("Containers.SLURM.SbatchArgumentsList", "arguments", Form::List),
    Key::new("Containers.SLURM.SbatchGPUArgumentsList", "gpu_arguments", Form::List),
    Key::new("Containers.SLURM.SbatchEnvironmentVariables", "", Form::Map),
    Key::new("Containers.SLURM.PrioritySpread", "priority_spread", Form::Number),
    Key::new("Containers.SLURM.Account", "account", Form::ByPartition),
    Key::new("Containers.SLURM.QOS", "qos", Form::ByPartition),
    Key::new("Containers.SLURM.Reservation", "reservation", Form::ByPartition),
    Key::new("Containers.SLURM.Managed", "", Form::Switch),
];

#[test]
fn everything_that_dispatchers_read_is_read() {
    let config = Config::of(FULL, &SLURM).unwrap();
    assert_eq!(config.id, "zzzzz");
    let values = |path| config.values(path).map(|values| values.join(" "));
    for (path, expected) in [
        ("Containers.ReserveExtraRAM", Some("576716800B")),
        ("Containers.MinRetryPeriod", Some("90000ms")),
        ("Containers.RuntimeEngine", Some("singularity")),
        ("Containers.SLURM.PrioritySpread", Some("42")),
        ("Containers.SLURM.SbatchGPUArgumentsList", None),
        (
            "Containers.SLURM.SbatchArgumentsList",
            Some("--job-name=%U --mem=%M"),
        ),
        ("Containers.SLURM.Account", Some("*:lab gpu:lab-gpu")),
        ("Containers.SLURM.QOS", Some("*:high")),
        ("Containers.SLURM.Reservation", None),
        ("Containers.SLURM.Managed", Some("false")),
    ] {
        assert_eq!(values(path).as_deref(), expected, "{path}");
    }
    let environment = config.map("Containers.SLURM.SbatchEnvironmentVariables");
    let expected = [("ARVADOS_KEEP_SERVICES".to_owned(), "u1 u2".to_owned())];
    assert_eq!(environment, BTreeMap::from(expected));
    let token = config.cluster.system_root_token.as_ref().unwrap();
    assert_eq!(token.expose(), "rootsecretrootsecret");
    assert!(!format!("{config:?}").contains("rootsecret"));

    let types = config.instance_types();
    let names: Vec<&str> = types.iter().map(|t| t.name.as_str()).collect();
    assert_eq!(names, ["a1.small", "c1", "g1"]);
    assert_eq!((types[0].cpus, types[0].ram), (2, 256_000_000));
    assert_eq!(
        (types[0].scratch, types[2].scratch),
        (11_000_000_000, 1_000_000_000)
    );
    assert_eq!((types[2].gpu.vram, types[2].preemptible), (16 << 30, true));
    assert_eq!(types[1].gpu.stack, "cuda");
    assert_eq!(
        config.warnings,
        [
            "Clusters.zzzzz.Containers.Colour is not known, and has no effect",
            "Clusters.zzzzz.Containers.SLURM.SbatchArgumentList is not known; is SbatchArgumentsList meant?",
        ]
    );
}

/// Text in YAML needs no quotes, whatever it looks like.
#[test]
fn numbers_are_texts_where_texts_are_read() {
    let slurm = "SbatchArgumentsList: [7, true], Account: {8.0: 9, '*': }, QOS: 5,
        SbatchEnvironmentVariables: {OMP_NUM_THREADS: 4, EMPTY: , SAMPLE: }";
    let text = format!("Clusters: {{zzzzz: {{Containers: {{SLURM: {{{slurm}}}}}}}}}");
    let config = Config::of(&text, &SLURM).unwrap();
    let values = |path| config.values(path).map(|values| values.join(" "));
    for (path, expected) in [
        ("Containers.SLURM.SbatchArgumentsList", "7 true"),
        ("Containers.SLURM.Account", "*: 8.0:9"),
        ("Containers.SLURM.QOS", "*:5"),
        (
            "Containers.SLURM.SbatchEnvironmentVariables",
            "EMPTY= OMP_NUM_THREADS=4",
        ),
    ] {
        assert_eq!(values(path).as_deref(), Some(expected), "{path}");
    }
}

#[test]
fn sizes_follow_the_rules_of_arvados() {
    for (text, bytes) in [
        ("550", 550),
        ("'550'", 550),
        ("1.5e9", 1_500_000_000),
        ("550M", 550_000_000),
        ("550MB", 550_000_000),
        ("550MiB", 550 << 20),
    ] {
        let text = format!("Clusters: {{zzzzz: {{Containers: {{ReserveExtraRAM: {text}}}}}}}");
        let config = Config::of(&text, &[]).unwrap();
        let value = config.values("Containers.ReserveExtraRAM").unwrap();
        assert_eq!(value, [format!("{bytes}B")], "{text}");
    }
}

#[test]
fn a_value_that_is_empty_counts_as_not_set() {
    let text = "Clusters: {zzzzz: {Containers: {ReserveExtraRAM: , MinRetryPeriod: ~},
        InstanceTypes: {a1: {VCPUs: 1, RAM: 1GiB, Scratch: , IncludedScratch: 2KiB, AddedScratch: null}}}}";
    let config = Config::of(text, &[]).unwrap();
    assert_eq!(config.values("Containers.ReserveExtraRAM"), None);
    assert_eq!(config.values("Containers.MinRetryPeriod"), None);
    assert_eq!(config.instance_types()[0].scratch, 2048);
}

#[test]
fn what_is_wrong_is_told_with_its_place() {
    #[rustfmt::skip]
    let rows = [
        ("Containers: {SLURM: {PrioritySpread: wide}}", "Clusters.zzzzz.Containers.SLURM.PrioritySpread: invalid type"),
        ("Containers: {SLURM: {SbatchArgumentsList: --mem=%M}}", "Clusters.zzzzz.Containers.SLURM.SbatchArgumentsList: invalid type"),
        ("Containers: {SLURM: {SbatchArgumentsList: [a, [b]]}}", "Clusters.zzzzz.Containers.SLURM.SbatchArgumentsList: invalid type"),
        ("Containers: {SLURM: {Account: [a]}}", "a map from partition to text"),
        ("Containers: {ReserveExtraRAM: much}", "Containers.ReserveExtraRAM: invalid value: string \"much\", expected a size"),
        ("Containers: {ReserveExtraRAM: -1}", "expected a size"),
        ("Containers: {MinRetryPeriod: 10}", "expected a time with its unit"),
        ("TLS: {Insecure: perhaps}", "Clusters.zzzzz.TLS.Insecure: invalid type"),
        ("InstanceTypes: {a1: {VCPUs: -1}}", "Clusters.zzzzz.InstanceTypes.a1.VCPUs: invalid type"),
        ("InstanceTypes: {a1: {RAM: 1GiB}}", "Clusters.zzzzz.InstanceTypes.a1.VCPUs: a machine has one or more"),
        ("InstanceTypes: {a1: {VCPUs: 1, RAM: 0}}", "InstanceTypes.a1.RAM: a machine has more"),
        ("InstanceTypes: {a1: {VCPUs: 1, RAM: 1GiB, Price: .nan}}", "InstanceTypes.a1.Price: it must be"),
        ("InstanceTypes: {a1: {VCPUs: 1, RAM: 1GiB, Price: -3}}", "InstanceTypes.a1.Price: it must be"),
        ("SystemRootToken: [5ecret]", "SystemRootToken is not text"),
    ];
    for (text, expected) in rows {
        let error = Config::of(&format!("Clusters: {{zzzzz: {{{text}}}}}"), &SLURM).unwrap_err();
        assert!(error.contains(expected), "{text}: {error}");
        assert!(!error.contains("5ecret"), "{error}");
    }
    for text in ["", "{}", "Clusters: {}", "Clusters: {aaaaa: {}, bbbbb: {}}"] {
        let error = Config::of(text, &[]).unwrap_err();
        assert!(error.contains("exactly one cluster"), "{text}: {error}");
    }
    assert!(Config::of("Clusters: {zzzzz: ", &[]).is_err());
    let error = Config::read(Path::new("/no/such/file"), &[]).unwrap_err();
    assert!(error.to_string().contains("/no/such/file"), "{error}");
}

#[test]
fn empty_sections_are_as_none() {
    let config = Config::of(
        "Clusters: {zzzzz: {Containers: , TLS: , Services: {Controller: }, InstanceTypes: , SystemRootToken: ''}}",
        &SLURM,
    )
    .unwrap();
    assert!(config.cluster.system_root_token.is_none());
    assert!(config.instance_types().is_empty());
    assert_eq!(config.cluster.services.controller.external_url, None);
}

#[test]
fn a_token_that_everybody_can_read_is_warned_of() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config.yml");
    std::fs::write(&path, "Clusters: {zzzzz: {SystemRootToken: root}}").unwrap();
    for (mode, warnings) in [(0o644, 1), (0o640, 0)] {
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        assert_eq!(
            Config::read(&path, &[]).unwrap().exposed.iter().count(),
            warnings
        );
    }
}

#[test]
fn the_sample_is_read_without_a_warning() {
    let sample = include_str!("../../../contrib/slurm/config.yml");
    let config = Config::of(sample, &SLURM).unwrap();
    assert_eq!(config.warnings, [""; 0]);
    let list = config.values("Containers.SLURM.SbatchArgumentsList");
    assert_eq!(list.unwrap().len(), 4);
}
