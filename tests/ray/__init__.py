"""Runs of ``--backend ray`` on clusters that lose processes, nodes and links. ``make test-ray`` runs these tests.

They need the package ray; those of real hosts need network namespaces, so root on Linux.
"""
