from corral.rollout.load_balancer import LoadBalancer


def measure_window(balancer, *busy_seconds):
    """Record eight rollouts in which each worker is busy for so many seconds, which is enough for a decision."""
    for _ in range(8):
        balancer.record_busy_times(busy_seconds)


def sizes(assignment):
    """Return the number of envs of each worker."""
    return None if assignment is None else [len(env_range) for env_range in assignment]


def test_no_move_is_proposed_while_workers_are_equally_fast():
    balancer, assignment = LoadBalancer(8, 2), [range(4), range(4, 8)]
    for _ in range(30):
        measure_window(balancer, 1.0, 1.1)
        assert balancer.proposal(assignment) is None


def test_no_move_is_proposed_before_a_window_of_rollouts_was_measured():
    balancer = LoadBalancer(8, 2)
    balancer.record_busy_times([1.0, 9.0])
    assert balancer.proposal([range(4), range(4, 8)]) is None


def test_envs_move_from_slow_workers_to_fast_ones():
    balancer, assignment = LoadBalancer(9, 3), [range(3), range(3, 6), range(6, 9)]
    measure_window(balancer, 3.0, 1.0, 1.0)
    proposed = balancer.proposal(assignment)
    assert sum(sizes(proposed)) == 9 and len(proposed[0]) < 3 and all(proposed)
    assert [env for env_range in proposed for env in env_range] == list(range(9))


def test_a_move_that_makes_rollouts_no_faster_is_undone():
    balancer, assignment = LoadBalancer(8, 2), [range(4), range(4, 8)]
    measure_window(balancer, 2.0, 1.0)
    proposed = balancer.proposal(assignment)
    assert proposed is not None
    balancer.record_move(True)
    measure_window(balancer, 2.5, 1.0)
    assert balancer.proposal(proposed) == assignment


def test_a_move_that_was_undone_is_not_proposed_again():
    balancer, assignment = LoadBalancer(8, 2), [range(4), range(4, 8)]
    measure_window(balancer, 2.0, 1.0)
    proposed = balancer.proposal(assignment)
    measure_window(balancer, 2.5, 1.0)
    assert balancer.proposal(proposed) == assignment
    for _ in range(5):
        measure_window(balancer, 2.0, 1.0)
        assert balancer.proposal(assignment) is None


def test_a_slowdown_removes_a_worker_and_later_one_is_added_again():
    balancer, assignment = LoadBalancer(8, 2), [range(4), range(4, 8)]
    measure_window(balancer, 1.0, 1.0)
    assert balancer.proposal(assignment) is None
    measure_window(balancer, 3.0, 3.0)
    one_worker = balancer.proposal(assignment)
    assert sizes(one_worker) == [8, 0]
    measure_window(balancer, 2.0, 0.0)  # faster than the 3 seconds with two workers
    assert balancer.proposal(one_worker) is None
    for _ in range(12):
        measure_window(balancer, 2.0, 0.0)
        proposed = balancer.proposal(one_worker)
        if proposed is not None:
            break
    assert sizes(proposed) == [4, 4]


def test_no_move_is_proposed_after_one_has_failed():
    balancer, assignment = LoadBalancer(8, 2), [range(4), range(4, 8)]
    measure_window(balancer, 3.0, 1.0)
    assert balancer.proposal(assignment) is not None
    balancer.record_move(False)
    measure_window(balancer, 3.0, 1.0)
    assert balancer.proposal(assignment) is None
