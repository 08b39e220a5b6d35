//! The contract of every engine: the same scenarios, the real program, one test for each pair.
//!
//! A scenario is an `async fn(&Lab)` in one of the modules below, named in `core!` or in `shared!`.
//! An engine is a row of `engines.rs` and a line `suite!` here. What differs between engines is in
//! `docs/engines.md`.

mod command;
pub mod daemons;
mod delegated_group;
mod ends;
pub mod engines;
mod escapes;
mod gpus;
mod images;
mod job_group;
pub mod lab;
mod leftovers;
mod limits;
mod mounts;
mod nobody;
mod records;
mod services;
mod streams;
mod surroundings;
mod users;

/// What an engine can get wrong, by module: `make test` plays it on four engines.
macro_rules! core {
    ($tests:ident) => {
        $tests! {
            ends: [
                exit_code_is_kept,
                a_signal_is_kept,
                a_command_that_kills_itself_with_term,
                unknown_command_is_named,
                missing_interpreter_is_named,
                a_file_that_is_no_program,
                a_file_that_is_not_executable,
                orphans_are_not_taken_for_the_command,
            ];
            streams: [
                stdout_and_stderr_are_apart,
                stdin_is_empty_unless_given,
                who_closes_its_streams_goes_on,
            ];
            command: [
                the_image_s_entrypoint_gets_the_command,
                arguments_arrive_unchanged,
                the_image_s_path_finds_the_command,
                environment_is_what_was_given,
                the_request_s_environment_wins,
                default_cwd_is_the_image_s,
                an_absolute_cwd,
                a_cwd_that_is_not_there,
                a_user_by_name,
                a_user_by_number,
                a_user_that_is_not_there,
            ];
            surroundings: [
                a_container_sees_only_its_own_processes,
                dev_shm_and_tmp_are_writable,
                proc_and_sys_are_safe,
                the_hostname_is_its_own,
                no_network_without_the_api,
                the_node_s_network_with_the_api,
                root_has_the_listed_capabilities_and_those_the_site_adds,
            ];
            escapes: [
                only_documented_attempts_at_an_escape_succeed,
                a_site_s_profile_and_none,
                a_container_cannot_change_the_program_that_started_it,
            ];
            limits: [
                the_memory_limit_kills_and_is_named,
                files_in_memory_are_limited,
                deleted_files_count_as_scratch,
                exit_0_after_a_child_was_killed_for_memory_is_a_warning,
                term_is_heard_within_the_grace,
                who_ignores_term_is_killed,
                what_it_leaves_in_the_background_ends_with_it,
                the_limit_of_processes_is_kept,
                the_number_of_cpus_is_kept,
            ];
            mounts: [
                a_collection_cannot_be_changed,
                a_writable_collection_is_the_output_as_it_was_left,
                a_tmp_mount_is_empty_writable_and_no_output,
                any_user_may_write_its_output,
                files_that_are_lost_with_the_container_are_named,
            ];
            images: [
                two_containers_begin_with_the_same_new_image,
                an_image_is_fetched_only_once,
                an_image_on_the_node_is_for_those_who_have_its_content,
                files_of_an_image_that_are_none_hold_up_nobody,
                no_library_of_the_image_is_asked_before_its_command_runs,
                what_is_mounted_on_a_link_that_leads_nowhere_is_there,
                a_mount_that_the_image_has_no_place_for_is_refused_by_its_name,
            ];
            leftovers: [
                what_a_killed_attempt_made_is_removed_by_the_next,
                the_command_of_a_killed_attempt_does_not_outlive_the_next,
            ];
            gpus: [
                the_granted_gpu_is_there_and_the_other_is_not,
                all_granted_gpus_are_there,
                without_a_wish_no_gpu_is_seen,
                a_vendor_s_hook_is_run_or_missed_aloud,
            ];
            records: [
                the_attempt_tidies_up,
                files_of_the_container_s_user_are_tidied_up,
            ];
        }
    };
}

/// What is the same code under all engines, by module: `make test` plays it on one of them.
macro_rules! shared {
    ($tests:ident) => {
        $tests! {
            ends: [
                largest_exit_code_is_kept,
                missing_file_is_named,
                many_short_children,
            ];
            streams: [
                lines_keep_their_order,
                no_output_at_all,
                output_without_an_end_of_line,
                binary_output_arrives_byte_for_byte,
                an_endless_line_is_cut,
                runaway_output_is_capped_and_the_command_goes_on,
            ];
            command: [
                the_request_s_path_finds_the_command,
                a_large_environment_arrives,
                thousands_of_arguments_arrive,
                an_argument_longer_than_the_kernel_takes,
            ];
            limits: [
                max_run_time_ends_it,
                priority_0_stops_it,
            ];
            mounts: [
                a_copy_below_the_output_may_be_changed,
                text_and_json_arrive_as_they_were_given,
                more_than_a_tmp_mount_s_capacity_ends_it,
                stdin_is_a_file_of_a_collection,
                stdin_is_the_json_that_was_given,
                stdin_need_not_be_read,
                stdout_and_stderr_are_files_of_the_output,
                a_link_to_a_collection_is_saved_by_reference,
                odd_names_are_kept_in_the_output,
                hundreds_of_files_are_saved,
                files_nobody_may_read_are_saved,
                secrets_are_in_no_log_and_no_output,
            ];
            images: [
                an_image_that_is_no_archive,
                an_image_archive_that_is_cut_short,
                an_archive_of_another_image,
                a_layer_that_is_not_what_its_digest_says,
                an_image_of_another_architecture,
            ];
            leftovers: [
                what_killed_attempts_made_is_removed_by_several_at_once,
                files_of_a_killed_attempt_are_removed_by_the_next,
            ];
            gpus: [
                a_gpu_the_node_does_not_have_is_refused,
                too_few_granted_are_refused,
                a_gpu_that_is_not_what_was_asked_for_is_refused,
            ];
            records: [
                logs_are_present_and_stamped,
                the_result_is_written_for_programs,
            ];
        }
    };
}

/// Of the engines that give root's containers users of their own.
macro_rules! own_users {
    ($tests:ident) => {
        $tests! {
            users: [
                users_of_root_s_containers_are_nobody_else_on_the_node,
                the_node_sees_its_processes_as_those_of_the_mapped_user,
                the_container_s_root_has_its_rights_on_its_own_files,
                streams_that_are_files_can_be_opened_by_name,
                a_port_below_1024_is_open_on_its_own_network,
                the_switch_for_users_of_its_own_is_heard,
                an_image_may_have_files_of_any_user,
                a_file_system_that_cannot_map_owners_is_named,
                a_part_of_proc_may_be_hidden,
                scratch_may_be_mounted_with_any_options,
            ];
        }
    };
}

macro_rules! tests {
    ($($module:ident: [$($scenario:ident),+ $(,)?];)+) => {
        $($(
            #[tokio::test]
            async fn $scenario() {
                crate::contract::lab::play(ENGINE, stringify!($scenario), crate::contract::$module::$scenario).await;
            }
        )+)+
    };
}

macro_rules! suite {
    ($name:ident, $engine:ident) => {
        mod $name {
            const ENGINE: crate::contract::engines::Engine =
                crate::contract::engines::Engine::$engine;
            mod core {
                use super::ENGINE;
                core!(tests);
            }
            mod shared {
                use super::ENGINE;
                shared!(tests);
            }
        }
    };
}

suite!(builtin, Builtin);
suite!(crun, Crun);
suite!(runc, Runc);
suite!(apptainer, Apptainer);
suite!(docker, Docker);
suite!(podman, Podman);
suite!(crun_as_nobody, CrunAsNobody);
suite!(docker_as_nobody, DockerAsNobody);
suite!(runc_as_nobody, RuncAsNobody);
suite!(podman_as_nobody, PodmanAsNobody);
suite!(apptainer_as_nobody, ApptainerAsNobody);

mod own_users {
    macro_rules! engine {
        ($name:ident, $engine:ident) => {
            mod $name {
                const ENGINE: crate::contract::engines::Engine =
                    crate::contract::engines::Engine::$engine;
                own_users!(tests);
            }
        };
    }
    engine!(builtin, Builtin);
    engine!(crun, Crun);
    engine!(runc, Runc);
}
