from corral.rollout.load_balancer import LoadBalancer


def window(balancer, *seconds):
    for _ in range(8):
        balancer.record_busy_times(seconds)


def sizes(shares):
    return None if shares is None else [len(share) for share in shares]


def test_nothing_moves_while_workers_are_equal():
    balancer, shares = LoadBalancer(8, 2), [range(4), range(4, 8)]
    for _ in range(30):
        window(balancer, 1.0, 1.1)
        assert balancer.proposal(shares) is None


def test_nothing_is_decided_before_there_is_something_to_go_by():
    balancer = LoadBalancer(8, 2)
    balancer.record_busy_times([1.0, 9.0])
    assert balancer.proposal([range(4), range(4, 8)]) is None


def test_envs_go_from_the_slow_to_the_fast():
    balancer, shares = LoadBalancer(9, 3), [range(3), range(3, 6), range(6, 9)]
    window(balancer, 3.0, 1.0, 1.0)
    wanted = balancer.proposal(shares)
    assert sum(sizes(wanted)) == 9 and len(wanted[0]) < 3 and all(wanted)
    assert [env for share in wanted for env in share] == list(range(9))


def test_a_move_that_does_not_help_is_taken_back():
    balancer, shares = LoadBalancer(8, 2), [range(4), range(4, 8)]
    window(balancer, 2.0, 1.0)
    wanted = balancer.proposal(shares)
    assert wanted is not None
    balancer.record_move(True)
    window(balancer, 2.5, 1.0)
    assert balancer.proposal(wanted) == shares


def test_a_move_that_did_not_help_is_not_tried_again():
    balancer, shares = LoadBalancer(8, 2), [range(4), range(4, 8)]
    window(balancer, 2.0, 1.0)
    wanted = balancer.proposal(shares)
    window(balancer, 2.5, 1.0)
    assert balancer.proposal(wanted) == shares
    for _ in range(5):
        window(balancer, 2.0, 1.0)
        assert balancer.proposal(shares) is None


def test_a_busy_machine_gets_one_worker_fewer_and_later_one_more_again():
    balancer, shares = LoadBalancer(8, 2), [range(4), range(4, 8)]
    window(balancer, 1.0, 1.0)
    assert balancer.proposal(shares) is None
    window(balancer, 3.0, 3.0)
    alone = balancer.proposal(shares)
    assert sizes(alone) == [8, 0]
    window(balancer, 2.0, 0.0)  # better than 3
    assert balancer.proposal(alone) is None
    for _ in range(12):
        window(balancer, 2.0, 0.0)
        wanted = balancer.proposal(alone)
        if wanted is not None:
            break
    assert sizes(wanted) == [4, 4]


def test_envs_that_cannot_move_stay():
    balancer, shares = LoadBalancer(8, 2), [range(4), range(4, 8)]
    window(balancer, 3.0, 1.0)
    assert balancer.proposal(shares) is not None
    balancer.record_move(False)
    window(balancer, 3.0, 1.0)
    assert balancer.proposal(shares) is None
