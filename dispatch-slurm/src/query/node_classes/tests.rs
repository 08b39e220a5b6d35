//! Tests of what fits, and of the partitions' times.

use super::*;
use crate::query::sinfo::parse_partitions;

const SINFO: &str = "main|4|4000|100000|infinite|3|gpu:fake:2(S:0,1)\nmain|64|256000|0|infinite|1|(null)\nshort|8|8000|50000|1-00:30:00|2|(null)\n";
const ALL: GrantedKinds = GrantedKinds {
    cpus: true,
    memory: true,
    scratch: true,
    time: true,
    gpus: true,
    partitions: true,
};

fn never(needs: &ResourceRequest, requested: GrantedKinds) -> Option<String> {
    match NodeClasses::parse(SINFO).unwrap().fit(needs, requested) {
        Admission::Now => None,
        Admission::Never(why) => Some(why),
        Admission::Later(why) | Admission::Impossible(why) => panic!("{why}"),
    }
}

#[test]
fn what_no_node_has_can_never_run() {
    let needs = ResourceRequest {
        cpus: 2,
        ram: 1000 * MIB,
        ..ResourceRequest::default()
    };
    let within = |partition: &str, needs: ResourceRequest| ResourceRequest {
        partitions: vec![partition.into()],
        ..needs
    };
    #[rustfmt::skip]
    let rows = [
        (needs.clone(), None),
        (ResourceRequest { cpus: 64, ram: 256_000 * MIB, ..needs.clone() }, None),
        (ResourceRequest { scratch: 100_000 * MIB, gpus: 2, ..needs.clone() }, None),
        (within("nosuch", needs.clone()), Some("Slurm has no partition nosuch; its partitions are main, short")),
        (ResourceRequest { partitions: vec!["nosuch".into(), "short".into()], ..needs.clone() }, None),
        (ResourceRequest { cpus: 65, ..needs.clone() }, Some("it requests 65 CPUs, but one node has at most 64")),
        (within("short", ResourceRequest { ram: 8000 * MIB + 1, ..needs.clone() }), Some("it requests 8001 MiB of memory, but one node has at most 8000")),
        (ResourceRequest { gpus: 3, scratch: 200_000 * MIB, ..needs.clone() }, Some("it requests 200000 MiB of scratch space, but one node has at most 100000; 3 GPUs, but one node has at most 2")),
        (ResourceRequest { gpus: 1, cpus: 8, ..needs.clone() }, Some("no node has all that it requests (8 CPUs, 1000 MiB of memory, 1 GPUs); the nearest, in partition main, has 4 CPUs, 4000 MiB of memory, 2 GPUs")),
        (within("short", ResourceRequest { max_run_time: Some(86_400 + 1800), ..needs.clone() }), None),
        (within("short", ResourceRequest { max_run_time: Some(86_400 + 1801), ..needs.clone() }), Some("it requests 1471 minutes, but a partition gives at most 1470")),
        (ResourceRequest { max_run_time: Some(1 << 40), ..needs }, None),
    ];
    for (needs, expected) in rows {
        assert_eq!(never(&needs, ALL).as_deref(), expected, "{needs:?}");
    }
}

#[test]
fn what_sbatch_is_not_told_is_not_asked_for() {
    let arguments = ["--mem=%M".to_owned(), "--partition=gpu".to_owned()];
    let requested = GrantedKinds::from_settings(&Settings {
        arguments: [arguments.to_vec(), vec!["--time=60".to_owned()]].concat(),
        gpu_arguments: vec!["--gpus=%G".to_owned()],
        ..Settings::default()
    });
    let needs = ResourceRequest {
        cpus: 1000,
        scratch: u64::MAX,
        partitions: vec!["nosuch".into()],
        max_run_time: Some(u64::MAX),
        ..ResourceRequest::default()
    };
    assert_eq!(never(&needs, requested), None);
    let gpus = ResourceRequest { gpus: 3, ..needs };
    assert!(never(&gpus, requested).unwrap().contains("3 GPUs"));
}

#[test]
fn times_are_compared_without_what_is_added_to_them() {
    let short = |seconds, argument: &str| {
        let settings = Settings {
            arguments: vec!["--partition=%P".to_owned(), argument.to_owned()],
            staging: "60m".parse().unwrap(),
            ..Settings::default()
        };
        let needs = ResourceRequest {
            max_run_time: Some(seconds),
            partitions: vec!["short".into()],
            ..ResourceRequest::default()
        };
        never(&needs, GrantedKinds::from_settings(&settings))
    };
    let (fits, over) = (1470 * 60, 1470 * 60 + 1);
    let why = "it requests 1471 minutes, but a partition gives at most 1470";
    for argument in ["--mem=%M", "--time=%W"] {
        assert_eq!(short(fits, argument), None);
        assert_eq!(short(over, argument).as_deref(), Some(why));
    }
    assert_eq!(short(over, "-t20"), None);
}

#[test]
fn a_job_has_the_times_of_its_partition() {
    let scontrol = "PartitionName=main TotalNodes=4\n\
         PartitionName=short Default=YES TotalNodes=2\nPartitionName=cloud TotalNodes=2\n";
    let classes = NodeClasses::parse(SINFO).unwrap();
    let classes = classes.with_partitions(&parse_partitions(scontrol));
    let needs = ResourceRequest {
        cpus: 8,
        ..ResourceRequest::default()
    };
    let longest = |partitions: &[&str]| {
        let partitions: Vec<String> = partitions.iter().map(|p| (*p).to_owned()).collect();
        classes.times(&needs, ALL, &partitions).longest
    };
    assert_eq!(longest(&[]), Some(1470));
    assert_eq!(longest(&["short"]), Some(1470));
    assert_eq!(longest(&["short", "main"]), None);
    assert_eq!(longest(&["short", "cloud"]), None);
    let named = ResourceRequest {
        partitions: vec!["short".into()],
        ..needs.clone()
    };
    let fixed = ["main".to_owned()];
    assert_eq!(ALL.partitions_of(&named, &fixed), ["short"]);
    assert_eq!(ALL.partitions_of(&needs, &fixed), ["main"]);
}

/// Observed with Slurm 22.05: sinfo shows `cloud|0|0|0|infinite|0|(null)`, and sbatch accepts
/// the job and starts a node.
#[test]
fn nodes_that_are_not_shown_may_have_anything() {
    let needs = |partition: &str, cpus| ResourceRequest {
        cpus,
        partitions: vec![partition.into()],
        ..ResourceRequest::default()
    };
    let visible_nodes = format!("{SINFO}cloud|0|0|0|infinite|0|(null)\n");
    let scontrol = "PartitionName=main AllowGroups=ALL TotalCPUs=76 TotalNodes=4\nPartitionName=short TotalNodes=9\n\
                PartitionName=cloud State=UP TotalNodes=2\n";
    let capacity = NodeClasses::parse(&visible_nodes)
        .unwrap()
        .with_partitions(&parse_partitions(scontrol));
    let fits = |partition, cpus| capacity.fit(&needs(partition, cpus), ALL) == Admission::Now;
    assert!(fits("cloud", 8) && fits("short", 999));
    assert!(fits("main", 64) && !fits("main", 65));
    assert!(
        NodeClasses::parse(&visible_nodes)
            .unwrap()
            .with_partitions(&BTreeMap::new())
            .fit(&needs("cloud", 1), ALL)
            != Admission::Now
    );
}

#[test]
fn a_cluster_without_tmpdisk_is_told_what_to_do() {
    let capacity = NodeClasses::parse("main|4|4000|0|infinite|1|(null)\n").unwrap();
    let needs = ResourceRequest {
        cpus: 1,
        cache_disk: MIB,
        ..ResourceRequest::default()
    };
    match capacity.fit(&needs, ALL) {
        Admission::Never(why) => assert!(why.contains("remove --tmp=%T"), "{why}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn nothing_is_refused_where_a_line_cannot_be_read() {
    let odd = "main|4|4000|0|infinite|1|(null)\nmain|4|4000|0|soon|1|(null)\n";
    let capacity = NodeClasses::parse(odd).unwrap();
    let totals = parse_partitions("PartitionName=main TotalNodes=2\n");
    let large = ResourceRequest {
        cpus: 9,
        ..ResourceRequest::default()
    };
    assert_ne!(capacity.fit(&large, ALL), Admission::Now);
    let capacity = capacity.with_partitions(&totals);
    assert_eq!(capacity.fit(&large, ALL), Admission::Now);
}

#[test]
fn what_cannot_be_read_is_no_capacity() {
    for answer in [
        "",
        "\n",
        "main|4|4000\n",
        "main|4|4000|0|infinite|(null)\n",
        "main|x|1|1|infinite|1|\n",
        "sinfo: error\n",
    ] {
        assert_eq!(NodeClasses::parse(answer), None, "{answer:?}");
    }
    assert!(NodeClasses::parse("main|4+|4000+|0|n/a|2|\n").is_some());
}

#[test]
fn nodes_without_scratch_space_are_told() {
    let without = SINFO.replace("|100000|", "|0|").replace("|50000|", "|0|");
    let unasked = GrantedKinds {
        scratch: false,
        ..ALL
    };
    for (sinfo, requested, expected) in [
        (SINFO, ALL, false),
        (without.as_str(), ALL, true),
        (without.as_str(), unasked, false),
    ] {
        let nodes = NodeClasses::parse(sinfo).unwrap();
        assert_eq!(nodes.lack_scratch(requested), expected, "{sinfo}");
    }
}
