"""The tests that `make test` leaves to `make test-all`, and for each the tests that keep its promise in `make test`.

`make test` shows that everything works: every method trains, one of each kind resumes, a federation of
processes gives the bytes of one process, and bad input is refused. A test moves to `make test-all` if it takes long and
a shorter one, named beside it, covers the same promise.
"""

from __future__ import annotations

from dataclasses import dataclass

WHOLE = (
    *("contract/", "distributed/", "faults/", "audit/", "studies/", "campaigns/", "api/", "starts/", "upgrade/"),
    *("report/", "render/sets/", "device/web/", "datasets/protocols/", "datasets/people/", "runs/", "parity/"),
    *("cli/", "datasets/test_make.py", "datasets/importers/test_pipeline.py", "base/test_extensions.py"),
    *("device/gallery/test_gallery_killed.py", "device/test_", "device/service/", "tasks/"),
    *("federation/test_", "federation/protections/", "federation/wire/test_wire_weights.py"),
    *("federation/privacy/test_accountant.py", "federation/privacy/test_private_clustering.py"),
    *("methods/test_algorithms_on_models.py", "methods/test_split.py", "methods/test_leakage.py"),
    *("methods/test_fedbn.py", "methods/test_fedma_passes.py", "methods/test_adapters_in_runs.py"),
    *("methods/test_face_adapters_in_runs.py", "methods/test_holding_a_start.py"),
    *("test_documentation.py", "test_processors.py", "test_shipped.py", "test_wheel.py", "test_website.py"),
    *("test_schemas.py", "test_broad.py", "test_layers.py", "test_tiers.py", "test_toy_runs.py"),
)
"""Below this folder: tests of whole recipes and processes, and long computations, which `make quick` leaves out."""

LONG = ("distributed/", "studies/", "contract/", "faults/", "audit/")
"""Files of tests that take long: begun last, one of them would go on alone."""

SPREAD = (
    *("contract/test_every_method.py", "contract/test_null_", "faults/test_killed.py", "runs/test_run.py"),
    *("methods/test_algorithms_on_models.py", "studies/test_studies.py", "federation/test_", "runs/test_workers.py"),
)
"""Files whose tests share no costly fixture: any worker runs any of their tests. Other files stay at one worker."""

FEDERATED = tuple(
    f"distributed/test_{name}.py" for name in ("own_files", "refusals", "same_bytes", "seen_by_the_operator")
)
"""Files whose tests share federations; one worker runs them."""


@dataclass(frozen=True)
class Moved:
    """A test function that only `make test-all` runs, except for the parameters in ``kept``.

    ``parameter`` limits the row to one set of parameters. Names are those of pytest, below this folder.
    """

    test: str
    sibling: str
    parameter: str | None = None
    kept: tuple[str, ...] = ()

    def covers(self, name: str) -> bool:
        """Tell whether the row moves the test with this name, which may end with parameters in brackets."""
        function, _, parameter = name.removesuffix("]").partition("[")
        if function != self.test or parameter in self.kept:
            return False
        return self.parameter is None or parameter == self.parameter


CONTRACT = "contract/test_every_method.py::"
RESUMED = CONTRACT + "test_a_run_stopped_after_every_round_and_resumed_equals_an_uninterrupted_one"
REPRESENTATIVES = ("fedpad", "fedgpad", "fedsis", "fedavg", "privacyface", "two-exchanges")
"""Averaging, disentangled parts, split learning, recognition, releases, and a method with two exchanges."""

SAME_BYTES = "distributed/test_same_bytes.py::test_bytes_equal_those_of_one_process"
FEDERATIONS = "distributed/test_refusals.py::test_only_certificates_of_this_federation_are_let_in"
DAMAGED = "faults/test_broken_files.py::test_without_the_damaged_checkpoint_the_one_before_leads_to_the_same_end"
FIRST_OPERATIONS = "faults/test_killed.py::test_killed_at_one_of_the_first_file_operations"
INTERRUPTED = "runs/test_run.py::test_a_run_that_was_interrupted_by_hand_is_resumed"
FORMER_KEYS = "runs/test_run.py::test_an_interrupted_run_of_a_version_with_former_keys_is_resumed"
TORN_LINE = "runs/test_run.py::test_a_resumed_run_mends_its_torn_last_line"
SWITCHED_OFF = "contract/test_null_algorithms.py::test_switched_off_it_is_fedavg_and_switched_on_it_is_not"
FIRST_ROUND = "contract/test_null_algorithms.py::test_scaffold_s_first_round_is_fedavg_s"
OWN_NORMS = "contract/test_null_algorithms.py::test_fedbn_with_nothing_of_a_site_s_own_is_fedavg"
ONE_BATCH = "contract/test_null_privacyface.py::test_fedsgd_on_one_batch_is_fedavg_on_one_batch"
LABELS = "audit/test_label_inference.py::test_an_audit_reads_all_labels_of_split_learning_and_the_report_shows_it"
GALLERY_KILLED = "device/gallery/test_gallery_killed.py::test_a_change_is_made_or_not"
RENDERING = "datasets/test_make.py::test_ctrl_c_and_sigterm_while_rendering_end_with_one_line_and_leave_nothing"

IMPORTS = "nn/test_torchvision_cpu.py::test_torchvision_and_timm_import_in_any_order"
ALONE = CONTRACT + "test_one_site_trains_as_if_alone"
OWN_CALL = CONTRACT + "test_one_site_that_is_asked_once_a_round_ends_where_its_own_call_leads"
RENDERED_TWICE = "render/sets/test_sets.py::test_two_processes_write_the_same_bytes_as_one"

MOVED = (
    *(Moved(test, test, kept=REPRESENTATIVES) for test in (RESUMED, ALONE, OWN_CALL)),
    Moved(SWITCHED_OFF, SWITCHED_OFF, kept=("sphere20-fedavg", "sphere20-scaffold")),
    Moved(IMPORTS, IMPORTS, kept=("import torchvision", "import fedvisage, timm")),
    Moved(FIRST_OPERATIONS, FIRST_OPERATIONS, kept=("1", "5")),
    Moved("render/sets/test_folder.py::test_two_processes_write_the_same_bytes_as_one", RENDERED_TWICE),
    Moved("render/sets/test_retaken.py::test_two_processes_write_the_same_bytes_as_one", RENDERED_TWICE),
    Moved(
        "campaigns/test_sample_of_the_campaign.py::test_a_few_cases_of_each_kind_find_nothing",
        "cli/test_hostile_runs.py::test_a_damaged_file_ends_a_verb_in_one_line_with_its_name",
    ),
    Moved(
        "studies/test_study.py::test_cells_that_run_beside_each_other_give_the_same_table_and_their_sites_have_no_processes_of_"
        "their_own",
        "runs/test_workers.py::test_sites_side_by_side_give_the_bytes_of_sites_one_after_another",
    ),
    Moved(
        "contract/test_null_privacyface.py::test_no_clusters_is_conventional_federated_learning_with_public_fine_tuning",
        "contract/test_null_privacyface.py::test_without_public_fine_tuning_that_is_fedavg",
    ),
    Moved(CONTRACT + "test_the_same_seed_gives_the_same_bytes", RESUMED, kept=REPRESENTATIVES),
    Moved(
        CONTRACT + "test_another_seed_gives_another_model_and_the_global_random_state_is_left_alone",
        CONTRACT + "test_another_seed_gives_another_model_and_the_global_random_state_is_left_alone",
        kept=REPRESENTATIVES,
    ),
    Moved(
        CONTRACT + "test_the_order_of_sites_in_the_recipe_does_not_matter",
        CONTRACT + "test_the_order_of_sites_in_the_recipe_does_not_matter",
        kept=REPRESENTATIVES,
    ),
    Moved(FIRST_ROUND, FIRST_ROUND, "timm"),
    Moved(OWN_NORMS, "contract/test_null_configurations.py::test_fedbn_with_nothing_of_a_sites_own_is_fedpad"),
    Moved(ONE_BATCH, ONE_BATCH, "iresnet18"),
    Moved(
        "contract/test_null_recognition.py::test_a_sample_as_large_as_all_classes_is_no_sample",
        "contract/test_null_recognition.py::test_a_sample_as_large_as_all_classes_is_no_sample",
        "conventional",
    ),
    Moved("distributed/test_deploy.py::test_the_walk", SAME_BYTES),
    Moved(
        "distributed/test_provisioned_again.py::test_who_is_revoked_is_cut_off_and_a_renewed_site_comes_back",
        "distributed/test_membership.py::test_who_is_revoked_is_refused_until_renewed",
    ),
    Moved(
        "distributed/test_provisioned_again.py::test_a_renewed_server_finds_its_sites_again",
        "distributed/test_membership.py::test_a_renewal_is_a_certificate_for_the_key_in_the_kit",
    ),
    Moved(
        "distributed/test_secure_federation.py::test_a_second_sum_without_a_site_takes_its_administrators",
        "federation/test_secure_differencing.py::test_a_second_run_without_a_site_is_refused",
    ),
    Moved("distributed/test_faults.py::test_fault", RESUMED),
    Moved(
        "distributed/test_seen_by_the_operator.py::test_a_run_is_in_the_status_while_it_goes_on",
        "distributed/test_status.py::test_prometheus_reads_a_value_a_site_one_a_certificate_and_four_a_run",
    ),
    Moved(SAME_BYTES, SAME_BYTES, "fedsis"),
    Moved("distributed/test_refusals.py::test_job_with_foreign_code", FEDERATIONS),
    Moved(
        "distributed/test_certificates.py::test_the_command_ends_with_a_line_and_2",
        "distributed/test_certificates.py::test_a_spoilt_kit",
    ),
    Moved("faults/test_killed.py::test_killed_at_random_file_operations", FIRST_OPERATIONS),
    Moved("faults/test_killed.py::test_killed_at_random_moments", FIRST_OPERATIONS),
    Moved("faults/test_killed_releases.py::test_a_killed_run_never_releases_a_round_twice", RESUMED),
    Moved(
        "faults/test_broken_files.py::test_a_file_size_limit_ends_the_run_with_a_plain_message_and_it_can_be_resumed",
        DAMAGED,
    ),
    Moved(GALLERY_KILLED, GALLERY_KILLED, "remove-after1"),
    Moved("audit/test_label_inference.py::test_an_audit_that_goes_elsewhere_leaves_the_run_alone", LABELS),
    Moved(
        "audit/test_audits_of_recognition.py::test_fedface_sends_its_class_centres",
        "audit/test_audits_of_recognition.py::test_all_of_them_apply",
    ),
    Moved(
        "runs/test_layout.py::test_a_narrow_network_trains_without_a_segmentation_fault",
        "runs/test_layout.py::test_channels_first_train_the_same_up_to_rounding",
    ),
    Moved(
        "federation/test_admission.py::test_of_ten_thousand_hostile_answers_none_is_admitted",
        "federation/wire/test_schema.py::test_spoilt_uploads_are_refused_with_field_and_reason",
    ),
    Moved(
        "federation/privacy/test_accountant.py::test_next_to_no_noise_has_a_figure_too",
        "federation/privacy/test_accountant.py::test_selections_cost_what_the_binomial_formula_of_randomised_response_gives",
    ),
    Moved(
        "test_shipped.py::test_a_shell_completes_shipped_names_and_files",
        "test_shipped.py::test_a_shipped_name_is_found_from_outside_the_checkout",
    ),
    Moved(
        "base/test_extensions.py::test_an_installed_method_and_model_are_run_by_their_names",
        "test_documentation.py::test_examples_are_found_by_the_entry_points_that_the_page_shows",
    ),
    Moved(INTERRUPTED, INTERRUPTED, "watching1"),
    Moved(FORMER_KEYS, FORMER_KEYS, "target"),
    Moved(TORN_LINE, TORN_LINE, "ledger.jsonl"),
    Moved(RENDERING, RENDERING, "killpg-15-ended by SIGTERM-143"),
    Moved("datasets/test_make.py::test_sigterm_ends_a_run_while_it_renders", RENDERING),
)
