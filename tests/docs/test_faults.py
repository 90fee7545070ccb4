"""Each fault in docs/troubleshooting.rst has tests, and each class of advisories of others.

The tests are named by their files below tests/, and by their functions.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
import re

import trio

import trioserve
from trioserve.config import HttpConfig
from trioserve.testing.server import open_fake_server

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "troubleshooting.rst"

# A beginning of the row in the page -> its tests.
FAULTS: dict[str, tuple[str, ...]] = {
    "The disk is full, in the cache or in the request log": (
        "weights/test_cache.py::test_a_disk_that_fills_up_is_reported_in_a_sentence",
        "weights/test_cache.py::test_a_build_that_fails_leaves_nothing_behind",
        "processes/threads/test_line_writer.py::test_a_full_disk_costs_lines_and_leaves_no_torn_one",
    ),
    "No descriptors are left": (
        "http/connection/test_descriptors.py::test_a_server_without_descriptors_answers_and_does_not_fill_its_log",
        "http/connection/test_descriptors.py::test_a_request_without_a_free_descriptor_gets_retry_after",
    ),
    "No memory is left, in the server's process or in the engine's": (
        "e2e/test_faults.py::test_a_server_without_memory_answers_when_it_has_some_again",
        "e2e/test_engine_process.py::test_an_engine_without_memory_tells_its_clients_and_ends_the_server",
        "startup/test_shortage.py::test_a_server_with_little_memory_says_so_in_a_sentence",
        "http/bodies/test_memory_budget.py",
    ),
    "The clock jumps": ("server/test_faults.py::test_the_clock_on_the_wall_may_jump",),
    "DNS hangs while an image is fetched": (
        "render/test_fetch.py::test_a_name_that_is_never_resolved_is_given_up_in_time",
        "render/test_fetch.py::test_a_server_that_does_not_answer_is_given_up_in_time",
    ),
    "A plug-in raises, or never ends": (
        "api/shared/test_logits_processors.py::test_a_defect_of_a_plug_in_is_a_500_for_its_own_request_only",
        "api/shared/test_logits_processors.py::test_a_plug_in_that_never_ends_costs_its_own_request",
        "e2e/test_engine_process.py::test_progressz_answers_503_while_the_engine_is_stopped",
    ),
    "Nobody reads stderr": (
        "startup/test_stderr.py::test_lines_wait_for_a_reader_in_their_order",
        "e2e/test_faults.py::test_a_log_that_nobody_reads_delays_no_answer",
    ),
    "A process is stopped (SIGSTOP)": (
        "e2e/test_faults.py::test_a_stopped_process_goes_on",
        "e2e/test_engine_process.py::test_progressz_answers_503_while_the_engine_is_stopped",
        "server/test_faults.py::test_a_process_may_be_stopped_for_an_hour",
    ),
    "SIGTERM, in each phase of a request": (
        "server/test_faults.py::test_a_drain_ends_requests_of_every_phase",
        "e2e/test_processes.py::test_a_signal_while_loading_ends_with_0",
        "e2e/test_processes.py::test_a_second_signal_cuts_the_drain",
    ),
    "``kill -9``, in each phase of a request": (
        "e2e/test_faults.py::test_a_killed_engine_ends_requests_of_every_phase",
        "server/test_faults.py::test_a_device_may_break_in_every_phase",
        "e2e/test_engine_process.py::test_a_killed_server_leaves_no_engine",
        "e2e/test_engine_process.py::test_a_process_killed_during_the_load_ends_the_other_one",
    ),
    "Hundreds of clients vanish at once": (
        "server/test_faults.py::test_200_clients_may_vanish_at_once",
        "e2e/test_processes.py::test_streams_that_end_at_random_leave_a_fresh_engine",
    ),
    "A connection is reset, at each point of a request": (
        "server/test_faults.py::test_a_reset_may_come_at_each_step_of_a_request",
        "server/test_faults.py::test_a_client_may_leave_in_every_phase",
    ),
}

# The classes of advisories that other servers of language models had -> our tests.
# Common to most: a request's error ends that request alone, every number of a client is
# bounded before memory is taken, and nothing runs what it reads.
ADVISORIES: dict[tuple[str, ...], tuple[str, ...]] = {
    # Objects from sockets that anybody reaches are unpickled.
    (
        *("CVE-2024-9052", "CVE-2024-9053", "CVE-2024-11041", "CVE-2025-29783"),
        *("CVE-2025-30165", "CVE-2025-32444", "CVE-2025-47277", "CVE-2025-30202"),
    ): (
        "docs/test_faults.py::test_nothing_unpickles_or_evaluates",
        "processes/test_messages.py::test_half_a_message_is_not_delivered",
        "executor/pipeline/test_torchrun.py::test_stages_of_one_machine_need_no_network",
        "executor/pipeline/test_torchrun.py::test_connections_of_no_stage_are_closed_and_stages_still_come",
    ),
    # A model's files are unpickled.
    ("CVE-2025-24357", "GHSA-ggpf-24jw-3fcw"): (
        "docs/test_faults.py::test_nothing_unpickles_or_evaluates",
        "weights/test_folder.py::test_a_folder_without_readable_files_is_refused",
    ),
    # Tensors of clients write outside their memory.
    ("CVE-2025-62164", "GHSA-mcmc-2m55-j8jj"): (
        "render/test_embeds.py::test_nothing_in_a_file_is_run",
        "render/test_embeds.py::test_an_index_outside_a_sparse_tensor_is_refused",
        "render/test_embeds.py::test_a_program_that_makes_no_tensor_is_refused",
        "render/test_embeds.py::test_a_kilobyte_does_not_become_a_gigabyte",
        "render/test_embeds.py::test_no_damaged_file_harms_the_process",
    ),
    # Code beside a model's weights runs.
    (*("CVE-2025-66448", "CVE-2026-22807", "CVE-2026-27893", "CVE-2026-41523"),): (
        "model/test_loading.py::test_code_beside_the_weights_is_never_run",
    ),
    # The output of a model is evaluated.
    ("CVE-2025-9141",): (
        "docs/test_faults.py::test_nothing_unpickles_or_evaluates",
        "render/tools/test_scanners.py::test_values_without_quotes_follow_the_schema",
    ),
    # A schema, a regular expression or a grammar ends the server, or takes its memory.
    (
        *("CVE-2025-48942", "CVE-2025-48943", "GHSA-hf3c-wxg2-49q9", "CVE-2026-55574"),
        *("CVE-2025-57809", "CVE-2025-58446", "CVE-2026-25048"),
    ): (
        "grammar/test_compile.py::test_a_wrong_form_is_refused",
        "grammar/test_compile.py::test_a_long_chain_of_definitions_does_not_end_the_process",
        "grammar/test_compile.py::test_a_grammar_has_a_bounded_number_of_rules",
        "grammar/test_compile.py::test_a_mistake_in_a_large_schema_is_found_in_bounded_time",
        "grammar/test_workers.py::test_a_failed_build_ends_its_sequences_alone",
        "grammar/test_workers.py::test_a_costly_grammar_delays_no_other",
    ),
    # The time of a parser grows with the square of its text.
    ("CVE-2025-48887", "CVE-2025-46560", "GHSA-j828-28rj-hfhp"): (
        "render/tools/test_scanners.py::test_the_work_grows_with_the_text_and_no_faster",
        "render/test_mixed.py::test_images_stand_where_the_processor_puts_their_tokens",
    ),
    # A head without an end takes all memory.
    ("CVE-2025-48956",): (
        "http/connection/test_malformed.py::test_an_error_of_the_protocol_has_a_body",
        "http/connection/test_connection.py::test_a_client_that_is_far_ahead_is_read_no_further",
    ),
    # Templates and their arguments come from requests.
    ("CVE-2025-61620", "CVE-2025-62426", "CVE-2024-34359"): (
        "render/test_template.py::test_a_template_of_a_request_must_be_trusted",
        "render/test_template.py::test_a_process_renders_in_bounded_time_and_memory",
        "render/test_chat.py::test_how_the_template_is_called_is_not_the_clients_to_set",
        "render/test_workers.py::test_a_call_that_does_not_end_makes_room_for_the_next",
    ),
    # The server fetches from addresses of its own network.
    ("CVE-2025-6242", "CVE-2026-24779", "CVE-2026-34753", "CVE-2026-73560"): (
        "render/test_fetch.py::test_a_private_address_is_never_contacted",
        "render/test_fetch.py::test_a_text_that_parsers_read_differently_is_no_url",
        "render/test_fetch.py::test_a_redirect_is_checked_like_the_url",
        "render/test_connect.py::test_a_name_is_resolved_once_and_its_checked_address_is_used",
    ),
    # The comparison of a key tells its beginning, or a header opens another door.
    ("CVE-2025-59425", "CVE-2026-48746"): (
        "docs/test_faults.py::test_no_host_header_opens_a_door",
        "http/keys/test_keys.py::test_everything_but_probes_and_documents_is_guarded",
        "http/keys/test_keys.py::test_a_wrong_key_is_refused_before_the_body_is_read",
    ),
    # The number of answers is not bounded.
    ("CVE-2026-34756",): (
        "server/test_admission.py::test_more_sequences_than_there_is_room_for_are_refused_before_they_are_made",
        "engine/test_engine.py::test_far_too_many_sequences_are_refused_before_they_are_made",
    ),
    # Images, sounds and films are larger than their files.
    ("CVE-2026-34755", "CVE-2026-54233", "CVE-2026-22773", "CVE-2026-5497"): (
        "render/test_decode.py::test_an_image_with_too_many_pixels_is_refused_before_it_is_decoded",
        "render/test_decode.py::test_a_size_that_the_header_alone_claims_is_refused",
        "render/test_decode.py::test_an_animation_shows_its_first_frame",
        "api/decode/test_schema.py::test_a_wrong_field_is_named",
    ),
    # A request raises inside the engine, and ends it for all.
    ("CVE-2026-44222", "CVE-2026-44223", "CVE-2024-8768"): (
        "engine/test_admission.py::test_a_request_is_refused",
        "render/test_mixed.py::test_a_placeholder_in_a_chat_without_images_is_just_a_token",
        "api/decode/test_bodies.py::test_any_value_in_any_field_is_taken_or_refused",
        "server/test_schemathesis.py::test_no_request_gets_an_answer_that_is_not_described",
    ),
    # Two texts or images have one key in a cache, or its speed tells of others' texts.
    ("CVE-2025-46722", "CVE-2025-46570", "CVE-2025-25183"): (
        "scheduler/test_prefix_keys.py::test_another_salt_shares_no_vector",
        "scheduler/test_prefix_keys.py::test_blocks_have_the_same_hash_if_and_only_if_all_up_to_them_is_the_same",
        "render/test_image_loader.py::test_a_data_url_is_decoded_and_known_by_its_bytes",
    ),
    # Errors tell addresses, paths and names of the server.
    ("CVE-2026-22778", "CVE-2026-54236", "CVE-2026-73555"): (
        "render/test_decode.py::test_an_error_reveals_nothing_of_the_process",
        "render/test_fetch.py::test_the_error_for_a_closed_port_does_not_name_the_address",
        "render/test_image_loader.py::test_no_other_file_is_read_or_revealed",
        "api/decode/test_schema.py::test_a_wrong_word_is_quoted_on_one_line_and_shortly",
    ),
    # Sounds are mixed in another way than the model's; texts of tokens have no bound.
    ("CVE-2026-34760", "CVE-2026-71486"): (
        "api/decode/test_schema.py::test_a_wrong_field_is_named",
        "http/bodies/test_upload.py::test_too_long_a_body_is_refused_at_once_and_closed",
    ),
    # A package of the same name comes from another index.
    ("CVE-2026-54232",): (
        "weights/test_wheel.py::test_a_wheel_that_is_not_the_one_that_was_published_is_refused",
        "weights/test_wheel.py::test_only_a_name_or_a_name_with_one_version_reaches_pip",
    ),
    # Requests leave something behind.
    ("CVE-2026-9540",): (
        "whole_server/test_histories.py::test_histories_end_as_they_must",
        "server/test_checkpoints.py::test_requests_that_generate",
        "http/audit/test_leak_audit.py",
    ),
    # Forms with many parts take all memory.
    ("CVE-2024-49767",): ("server/test_api.py::test_http_errors_are_json_too",),
}

NAMED = [name for row in (*FAULTS.values(), *ADVISORIES.values()) for name in row]


def test_the_named_tests_exist() -> None:
    for name in NAMED:
        file, _, function = name.partition("::")
        tests = re.findall(r"^(?:async )?def (test_\w+)", read(file), re.MULTILINE)
        assert tests and (not function or function in tests), name


@cache
def read(file: str) -> str:
    return (TESTS / file).read_text()


def test_the_page_has_the_same_faults() -> None:
    section = PAGE.read_text().split("\nFaults\n------\n")[1].split("\nLeaks\n")[0]
    cells = re.findall(r"^   \* - (.*(?:\n       .*)*)", section, re.MULTILINE)
    assert [" ".join(cell.split()) for cell in cells] == ["Fault", *FAULTS]


def test_an_advisory_is_in_one_class() -> None:
    ids = [each for row in ADVISORIES for each in row]
    assert len(ids) == len(set(ids))
    for each in ids:
        assert re.fullmatch(r"CVE-20\d\d-\d{4,5}|GHSA(-[0-9a-z]{4}){3}", each)


def test_nothing_unpickles_or_evaluates() -> None:
    for path in Path(trioserve.__file__).parent.rglob("*.py"):
        text = path.read_text()
        # Most files need not be parsed.
        suspect = re.search(r"\b(eval|exec|loads?|Unpickler|open)\b", text)
        for node in ast.walk(ast.parse(text)) if suspect else ():
            if isinstance(node, ast.Call):
                _check_call(node, path)


def _check_call(node: ast.Call, path: Path) -> None:
    called = ast.unparse(node.func)
    assert called not in ("eval", "exec", "pickle.load", "pickle.loads"), path
    assert called not in ("marshal.loads", "pickle.Unpickler", "shelve.open"), path
    if called == "torch.load":
        chosen = {each.arg: ast.unparse(each.value) for each in node.keywords}
        assert chosen.get("weights_only") == "True", path


async def test_no_host_header_opens_a_door(tokenizer_folder: Path) -> None:
    config = HttpConfig(api_key=("sk-one",))
    async with open_fake_server(tokenizer_folder, http=config) as server:
        for host in ("x/health?", "x#/health", "health", "x/health"):
            async with await trio.open_tcp_stream("127.0.0.1", server.port) as stream:
                await stream.send_all(
                    b"GET /v1/models HTTP/1.1\r\nHost: %b\r\nConnection: close\r\n\r\n"
                    % host.encode()
                )
                answer = b"".join([part async for part in stream])
            assert answer.split()[1] in (b"400", b"401"), answer
