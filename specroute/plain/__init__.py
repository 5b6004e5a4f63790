"""Plain calls: what leaves for a provider, how often and to whom, what came back, and its report.

``legs`` says how each target is reached, ``attempts`` how often one is asked, ``outgoing`` what
leaves; ``replies`` and ``passthrough`` what the caller gets, ``resumption`` how a stream that broke
off goes on, ``tally`` what the call came to.
"""
